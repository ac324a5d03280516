"""The copy of an endpoint on this node: follow the log, restore, snapshot."""
