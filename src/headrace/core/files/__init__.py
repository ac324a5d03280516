"""Files of a project on a local disk or an object store, and locks on them."""
