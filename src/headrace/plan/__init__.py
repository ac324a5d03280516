"""From a project to a frozen plan that run and explain both interpret."""
