"""The HTTP/2 transport below gRPC. It imports nothing of Headrace."""
