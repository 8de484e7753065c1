"""The ClientApp of fedsuite, as Flower names it."""

from fedsuite.running.node_app import app

__all__ = ["app"]
