"""Projects made from the configuration of other systems."""
