"""Machinery of a client: base, training loop, evaluation, store."""
