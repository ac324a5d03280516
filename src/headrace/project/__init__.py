"""Loads headrace.yaml into typed, frozen data that knows its file and line."""
