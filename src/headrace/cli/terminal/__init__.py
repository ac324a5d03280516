"""What all commands share: output, arguments, completion, prompts, signals."""
