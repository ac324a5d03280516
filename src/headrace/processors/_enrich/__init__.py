"""Shared by the processors that query another service for each row."""
