"""From SQL to the algebra."""
