"""What becomes of a case: the key changes the run, is refused, or is told to do nothing."""

from typing import Literal

from fedsuite.core.errors import FedsuiteError
from fedsuite.experiment.experiment import Experiment
from tests.effects.cases import Case
from tests.effects.runs import did, refused_replies

Outcome = Literal["changed", "refused", "told"]

FAULTS = ("drop-out", "straggler", "max-failed-rounds", "quorum")
FAULTS += ("attack", "attackers", "attack-strength", "over-select", "round-deadline")
FAULTS += ("most-examples",)
"""Keys that are about replies that do not come, or are not to be used."""


def outcome(case: Case) -> Outcome:
    """Run a case; an AssertionError says that its key is taken and does nothing."""
    values = {**case.before, **case.changed}
    try:
        before = did(case.before)
    except FedsuiteError as error:
        _check(case, error, set(case.before))
        return "refused"
    try:
        after = did(values)
    except FedsuiteError as error:
        _check(case, error, {case.key})
        return "refused"
    if "error" in after and case.key not in FAULTS:
        _check(case, after["error"], {case.key})
        return "refused"
    if before == after:
        note = getattr(Experiment.from_values(values), "note", "")
        assert case.key in note, f"{case}: taken, and nothing changes"
        return "told"
    worse = refused_replies(after) > refused_replies(before)
    assert not worse or case.key in FAULTS, f"{case}: replies are refused"
    return "changed"


def _check(case: Case, error: object, names: set[str]) -> None:
    text = str(error)
    assert "\n" not in text, f"{case}: more than one line: {text}"
    named = {str(case.before["method"]), *names}
    assert any(name in text for name in named), f"{case}: says not what: {text}"
