"""The embedded LMDB copy of an endpoint that answers requests. Only this package uses LMDB."""
