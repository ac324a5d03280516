"""Who may read what: tokens, grants, row filters, limits, and the stores behind endpoints."""
