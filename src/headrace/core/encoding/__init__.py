"""Conversion of values between Arrow, Python, JSON, Avro and protobuf."""
