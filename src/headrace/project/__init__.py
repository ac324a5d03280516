"""From headrace.yaml to typed, frozen data that knows where it came from."""
