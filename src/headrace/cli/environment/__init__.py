"""Commands about the machine: checks, jars, local services, versions."""
