"""What keeps a process going: child processes, retries, modules that are loaded at first use."""
