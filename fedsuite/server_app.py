"""The ServerApp of fedsuite, as Flower names it."""

from fedsuite.running.server import app

__all__ = ["app"]
