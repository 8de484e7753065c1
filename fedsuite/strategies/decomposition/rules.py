"""Methods and keys that filter decomposition cannot be combined with."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsuite.core.keys import Value
from fedsuite.messages.decomposition import CLIENT_KEYS, KEYS

if TYPE_CHECKING:
    from fedsuite.rounds.declaration import MethodDeclaration


def refusal(strategy: "type[MethodDeclaration]", values: Mapping[str, Value]) -> str:
    """Return why a method's class cannot go with a decomposition; empty if it can.

    ``values`` has all keys of :data:`~fedsuite.messages.decomposition.KEYS`.
    """
    changed = {k.name: values[k.name] for k in KEYS if values[k.name] != k.default}
    for name in changed:
        for need in next(key.needs for key in KEYS if key.name == name):
            if not need.met(values):
                return (
                    f"{_said(name, changed)} has no effect with {need.key} = "
                    f"{values[need.key]!r}: set that too, or leave this out"
                )
    acting = [name for name in CLIENT_KEYS if name in changed]
    if not acting:
        return ""
    if str(values["decomposition-average"]).endswith("-regauged"):
        return (
            f"{_said(acting[0], changed)} cannot go with decomposition-average = "
            f"{values['decomposition-average']!r}, which changes atoms and coefficients "
            "together in each round: leave one of them out"
        )
    first, method = _said(acting[0], changed), strategy.__name__
    if strategy.takes("groups"):
        return f"{first}: {method} divides the model itself: leave it out"
    if not strategy.trains_one_model():
        return (
            f"{first} needs a method whose clients train one shared model and send it "
            f"back, and {method} is none: leave it out, or choose another method"
        )
    if "personal-atoms" in changed and strategy.SCORED_MODEL != "shared":
        return (
            f"{_said('personal-atoms', changed)}: {method} scores clients with a "
            f"{strategy.SCORED_MODEL} model already: leave it out, or choose another method"
        )
    if "coefficient-period" not in changed:
        return ""
    freezes = values["local-coefficients"] == "freeze"
    if freezes and strategy.SCORED_MODEL == "private":
        return (
            f"{_said('local-coefficients', changed)} would also freeze the private models "
            f"of {method}, which never travel: set 'discard' or 'persist'"
        )
    if not freezes and strategy.CORRECTS_GRADIENTS:
        return (
            f"{_said('coefficient-period', changed)}: {method} corrects gradients by "
            "vectors of all that is trained, and needs local-coefficients = 'freeze', "
            "which trains what travels and nothing else"
        )
    return ""


def _said(name: str, values: Mapping[str, Value]) -> str:
    return f"{name} = {values[name]!r}"
