"""Values of options: durations, sizes, topics of logs."""
