"""What secure sums cannot go with."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Unless, Value, With
from fedsuite.core.rules import Rule, Values
from fedsuite.messages.records import PARTNERS
from fedsuite.rounds.declaration import Summed
from fedsuite.rounds.round_settings import NOISE, SECURE, TARGET, THRESHOLD

if TYPE_CHECKING:
    from fedsuite.rounds.declaration import MethodDeclaration

SECURE_STAGES = ("query.secure_keys", "query.secure_shares", "query.secure_unmask")
"""Types of the messages that go before and after the one to train, under masks."""

MASKED = "masked"
SECURE_VARIABLE = "FEDSUITE_SECURE_AGGREGATION"
"""By which a node's operator demands masks where there is no node-config."""

_ON = Unless(SECURE, "off")


def masks_demanded(
    node_config: Mapping[str, Value], environment: Mapping[str, str]
) -> bool:
    """Return whether a node's operator lets the node train under masks alone.

    Who lists with whom it adds up does so too.

    Raises
    ------
    ConfigError
        If the operator's words say neither.
    """
    demand = node_config.get(SECURE, environment.get(SECURE_VARIABLE, ""))
    if demand not in ("", MASKED):
        raise ConfigError(
            f"node-config {SECURE} = {demand!r}: expected {MASKED!r}, or leave it out"
        )
    return bool(demand or node_config.get(PARTNERS))


def why_not_summed(method: "type[MethodDeclaration]") -> str:
    """Return why a sum of the clients' models is not enough for a method; empty if it is.

    Whose step is one mean says so by ``PRIVACY``. Under noise that mean counts all clients
    alike and reads no metric; here it is the method's own.
    """
    if method.summed() is not None:
        return ""
    release = method.released()
    if release.kind == "weighted":
        return "it weighs clients by what each reports of itself"
    if release.kind == "refused":
        return "its step is not one mean of the clients' models"
    own = {name for base in method.__mro__ for name in vars(base) if _is_method(base)}
    if "weight_of" in own:
        return "it weighs clients by something else than their examples"
    if "claims" in own:
        return "it checks what each client reports of itself"
    return ""


def _is_method(base: type) -> bool:
    return not base.__module__.startswith("fedsuite.rounds.")


_SINGLE: tuple[tuple[str, tuple[Value, ...], str], ...] = (
    ("fedvarp", (False,), "it remembers each client's update"),
    ("aggregator", ("mean",), "such a rule compares single updates"),
    ("max-client-weight", (AUTO, 1.0), "no client tells its weight"),
    ("max-share-ratio", ("off",), "no client tells its weight"),
    ("max-examples", (AUTO, "off"), "no client tells its examples: see {most-examples}"),
    ("max-update-norm", (AUTO, "off"), "no update is seen: see {clipping-range}"),
    ("score-trained", (False,), "what clients measure in training stays with them"),
    (
        "selection",
        ("uniform", "by-examples", "round-robin"),
        "no client tells its loss",
    ),
    ("devices", ("",), "what clients measure in training stays with them"),
    (NOISE, (0.0,), "the server would have to clip single updates"),
    (TARGET, (0.0,), "the server would have to clip single updates"),
    ("decomposition-average", ("factors",), "it multiplies each client's factors"),
    ("measure-cross-terms", (False,), "it multiplies each client's factors"),
    ("lora-average", ("factors",), "it multiplies each client's adapters"),
)
"""Keys that need single updates but for some values, and why."""


def _asked(values: Values) -> int:
    return int(values["clients-per-round"] or values["num-clients"] or 0)


def _wrong_threshold(values: Values) -> str:
    from fedsuite.messages.secure_sums import least_threshold, threshold_refusal

    count, threshold = _asked(values), int(values[THRESHOLD])
    if not count or least_threshold(count) <= threshold <= count:
        return ""
    return threshold_refusal(threshold, count)


_OF_ALL_METHODS = (
    *(
        Rule(
            (name, SECURE),
            (_ON, *(Unless(name, value) for value in allowed)),
            reason,
            "leave one of them out",
        )
        for name, allowed, reason in _SINGLE
    ),
    Rule(
        ("suspect-rounds", SECURE),
        (_ON,),
        "no single update is seen to be suspected",
        "leave it out",
        idle=True,
    ),
    Rule(
        (SECURE, "clients-per-round", "num-clients"),
        (_ON, lambda values: 0 < _asked(values) < 3),
        "a sum of fewer than 3 clients shows what single ones sent",
        "take more clients",
    ),
    Rule(
        (THRESHOLD, "clients-per-round", "num-clients", SECURE),
        (_ON, Unless(THRESHOLD, 0), lambda values: bool(_wrong_threshold(values))),
        _wrong_threshold,
        "set another, or 0",
    ),
    Rule(
        ("quantisation-bits", SECURE),
        (_ON, Unless("quantisation-bits", 16), Unless("quantisation-bits", 32)),
        "numbers travel as whole bytes",
        "set 16 or 32",
    ),
    Rule(
        ("workers", SECURE),
        (With(SECURE, MASKED), Unless("workers", 1)),
        "a client's secrets stay in one process",
        "set 1, or {secure-aggregation} = 'unmasked' for the same sums",
    ),
)


def rules_of_secure_sums(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield what secure sums cannot go with, for a method."""
    if why := why_not_summed(method):
        yield Rule(
            (SECURE, "method"),
            (_ON,),
            f"{why}, and the server would see their sum alone",
            "leave it out, or choose another method, such as fedavg",
        )
    yield from _OF_ALL_METHODS
    yield from _rules_of_weights(method.summed() or Summed())


def _rules_of_weights(how: Summed) -> Iterator[Rule]:
    """Yield what a method's own weights cannot go with."""
    for name, (value, why) in how.needs.items():
        advice = f"set {{{name}}} = {str(value).lower()}"
        yield Rule((name, SECURE), (_ON, Unless(name, value)), why, advice)
    if not how.loss:
        why = "no client weighs itself by a loss"
        yield Rule(("most-loss", SECURE), (_ON,), why, "leave it out", idle=True)
    if how.form in ("tilted", "softmax"):
        keys = ("most-loss", how.rate, *filter(None, [how.most_loss]))
        yield Rule(
            (*keys, SECURE),
            (_ON, lambda values: bool(_too_steep(how, values))),
            lambda values: _too_steep(how, values),
            f"set it lower, or {{{how.rate}}} nearer to equal weights",
        )


def rate_of(how: Summed, values: Values) -> float:
    """Return the rate of a method's weights, a number of its keys."""
    rate = float(values[how.rate]) if how.rate else 0.0
    return 1.0 / rate if how.form == "softmax" else rate


def _too_steep(how: Summed, values: Values) -> str:
    from fedsuite.messages.secure_sums import STEEPEST, steep_refusal

    bound = float(values[how.most_loss] or math.inf) if how.most_loss else math.inf
    rate, most = rate_of(how, values), min(float(values["most-loss"]), bound)
    return steep_refusal(rate, most) if abs(rate) * most > STEEPEST else ""
