"""HTTP requests and responses: authentication of requests, bodies, content negotiation, problem documents."""
