"""The embedded copy of an endpoint that answers requests: the only package that knows LMDB."""
