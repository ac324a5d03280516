"""Outside systems, one module or package each: connection options, TLS, timeouts, and what their errors mean."""
