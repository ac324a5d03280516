"""From the algebra to delta queries and the state they keep."""
