"""The algebra of incremental views: operators over weighted rows."""
