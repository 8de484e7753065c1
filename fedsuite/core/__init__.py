"""Foundations: errors, files, logs, keys, random streams, metrics."""
