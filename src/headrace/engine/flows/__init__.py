"""Starts one flow as one Spark query: streaming flows, views and reports. Begin with `flow`."""
