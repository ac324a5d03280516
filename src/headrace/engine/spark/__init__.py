"""The Spark session, its processes and jars, and the translation of its errors."""
