"""Deterministic simulation: the server and its clients in a world made of one seed."""
