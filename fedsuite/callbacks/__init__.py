"""Cross-cutting work around the rounds, one callback per file."""

from fedsuite.rounds.events import Callback, RoundReport, RunState

__all__ = ["Callback", "RoundReport", "RunState"]
