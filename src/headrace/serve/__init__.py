"""The processes of a serve node: they follow the logs of endpoints and answer requests."""
