"""Settings, status, ports and metrics of a serve node."""
