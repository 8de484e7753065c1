"""Engines: this process, Flower's Ray simulation, and real processes."""
