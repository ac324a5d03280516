"""Kafka: connection options, TLS, and the cluster behind them."""
