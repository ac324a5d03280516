"""What can be learned from a SQL text, and rewritten in it, without Spark."""
