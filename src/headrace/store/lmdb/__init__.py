"""LMDB environments, their errors and their pages."""
