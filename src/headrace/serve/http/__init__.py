"""HTTP requests and replies, apart from what they ask for."""
