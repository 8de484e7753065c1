"""The ClientApp of fedsuite, as Flower names it."""

from fedsuite.running.worker import app

__all__ = ["app"]
