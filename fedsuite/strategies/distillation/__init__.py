"""Clients that learn from each other's outputs."""
