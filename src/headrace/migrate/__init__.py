"""Creates projects from the configuration of other systems."""
