"""The REST API of endpoints: routes, rows, live events, OpenAPI, dashboards."""
