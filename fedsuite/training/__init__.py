"""Machinery of a client: its base, the training loop, evaluation, the store."""
