"""The Spark session, its processes and jars, and what its errors mean."""
