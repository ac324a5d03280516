"""Values between Arrow, Python, JSON, Avro and protobuf."""
