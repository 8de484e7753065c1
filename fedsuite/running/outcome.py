"""Whether a run that came to its end has trained anything."""

from pathlib import Path

from fedsuite.messages.records import TRAIN
from fedsuite.results.reader import load_run
from fedsuite.rounds.report import FAILED


def untrained(path: Path) -> str:
    """Return why a run whose rounds all came to nothing is not finished; else empty.

    Rounds that ask nobody to train are neither failed nor trained.
    """
    run = load_run(path)
    failed = [row for row in run.rounds if row.get(FAILED)]
    trained = any(row.get("clients_trained") and not row.get(FAILED) for row in run.rounds)
    if not failed or trained:
        return ""
    reasons = [
        str(event.get("reason"))
        for event in run.events()
        if event.get("kind") == "rejected-reply" and event.get("phase") == TRAIN
    ]
    last = reasons[-1] if reasons else "no reply came"
    return (
        f"no round trained: {len(failed)} of {len(failed)} failed; last reason: {last}: "
        "mend the cause, and begin anew or resume with more rounds"
    )
