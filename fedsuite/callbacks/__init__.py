"""Cross-cutting work around the rounds, one callback a file."""

from fedsuite.strategies.callback import Callback, RoundReport, RunState

__all__ = ["Callback", "RoundReport", "RunState"]
