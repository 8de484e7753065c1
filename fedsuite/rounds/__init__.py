"""Machinery of a round on the server: base, exchange, checks, sums, checkpoints."""
