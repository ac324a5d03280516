"""Commands that watch and steer running flows."""
