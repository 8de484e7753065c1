"""The ``fedsuite`` command."""

from fedsuite.cli.command import app, main

__all__ = ["app", "main"]
