"""The state folder: generations, checkpoints, locks, leases, status."""
