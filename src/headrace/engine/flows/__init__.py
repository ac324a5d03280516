"""One flow as a Spark query: streaming flows, views and reports."""
