"""HTTP: options (`options`), a client that retries (`client`), downloads (`download`), many requests at once
(`async_client`)."""
