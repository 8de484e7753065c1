"""Weighted averages of the clients' models."""
