"""The store of one endpoint: read, write, fill, snapshot."""
