"""Sweeps, and runs of Standalone for other runs."""
