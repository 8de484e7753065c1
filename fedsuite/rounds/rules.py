"""The rules of the keys of rounds, beside those that methods declare themselves.

An experiment and a strategy's constructor read this one table. Rules of keys that only
experiments have stand in :mod:`fedsuite.experiment.rules`, in the same form.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedsuite.core.keys import AUTO, Unless, Value, With
from fedsuite.core.rules import Rule, Values
from fedsuite.messages.compression import DOWN, UP
from fedsuite.messages.decomposition import CLIENT_KEYS, KEYS
from fedsuite.rounds.robust_rules import too_few
from fedsuite.rounds.round_settings import NOISE, SECURE, TARGET
from fedsuite.rounds.secure_rules import rules_of_secure_sums

if TYPE_CHECKING:
    from fedsuite.rounds.declaration import MethodDeclaration

_ONE_OF_THEM = "leave one of them out"

_OF_ROUNDS = (
    Rule(
        ("server-optimizer", "server-momentum"),
        (With("server-optimizer", "nesterov"), With("server-momentum", 0.0)),
        "it looks ahead by the momentum, and there is none",
        "set another {server-momentum} too, or another {server-optimizer}",
    ),
    Rule(
        ("liars", "aggregator"),
        (Unless("aggregator", "mean"), lambda values: 0.5 <= values["liars"] < 1),
        "no rule withstands half of the clients",
        "set less",
    ),
    Rule(
        ("liars", "aggregator"),
        (Unless("aggregator", "mean"), lambda v: v["liars"] > 1 and v["liars"] % 1 != 0),
        "above 1 it is a number of clients",
        "set a whole number, or a share below 0.5",
    ),
    Rule(
        ("clients-per-round", "num-clients"),
        (lambda v: v["num-clients"] and v["clients-per-round"] > v["num-clients"],),
        "there are no more clients",
        "set no more, or 0 for all",
    ),
    Rule(
        ("over-select", "clients-per-round"),
        (Unless("over-select", 1.0), With("clients-per-round", 0)),
        "all are asked, and all are waited for",
        "set {clients-per-round} to the replies that close a round",
    ),
    Rule(
        ("selection-candidates", "clients-per-round"),
        (
            Unless("selection-candidates", 0),
            lambda v: v["selection-candidates"] <= v["clients-per-round"],
        ),
        "all of them are asked",
        "set more than are asked, or 0",
    ),
    Rule(
        ("dp-sampling", "clients-per-round"),
        (Unless("dp-sampling", "cycles"), With("clients-per-round", 0)),
        "no sample of all clients is secret",
        "set another {clients-per-round} too, or another {dp-sampling}",
    ),
    Rule(
        (TARGET, NOISE),
        (Unless(TARGET, 0.0), Unless(NOISE, 0.0)),
        "the noise is solved for",
        f"leave {{{NOISE}}} out",
    ),
)

_NOT_UNDER_NOISE: tuple[tuple[tuple[str, ...], tuple[Value, ...], str], ...] = (
    (
        ("fedvarp",),
        (False,),
        "it lets a client's stored update into later rounds, which no accountant counts",
    ),
    (
        ("quorum",),
        (1,),
        "it would tell who answered, because the model stays where too few did",
    ),
    (
        ("best-model-metric", "early-stop-metric"),
        ("",),
        "it chooses by the clients' own scores, which get no noise",
    ),
    (
        ("max-examples", "max-update-norm"),
        (AUTO, "off"),
        "it compares clients, while {dp-clipping-norm} bounds each alone",
    ),
    (
        ("aggregator",),
        ("mean",),
        "how far one client moves it is not known, so no noise is enough",
    ),
    (
        ("max-client-weight",),
        (AUTO, 1.0),
        "it divides by what others claim, while {dp-max-weight} bounds each alone",
    ),
    (
        ("max-share-ratio",),
        (2.0, "off"),
        "it divides by what others claim, while {dp-max-weight} bounds each alone",
    ),
    (("selection",), ("uniform",), "it is no sample that an accountant counts"),
    (("devices",), ("",), "who is away is no sample that an accountant counts"),
    (("lora-average",), ("factors",), "nobody has argued what a round with it releases"),
    (("decomposition",), (False,), "nobody has argued what a round with it releases"),
)
"""Keys that break the promise of an epsilon, but for some values, and why."""


_OF_NOISE = tuple(
    Rule(
        (key, asked),
        (Unless(asked, 0.0), *(Unless(key, value) for value in allowed)),
        why,
        _ONE_OF_THEM,
    )
    for asked in (NOISE, TARGET)
    for keys, allowed, why in _NOT_UNDER_NOISE
    for key in keys
)

_OF_COMPRESSION = (
    Rule(
        (UP, SECURE),
        (Unless(UP, "none"), Unless(SECURE, "off")),
        "a sum is of whole numbers, whose size is {quantisation-bits}",
        _ONE_OF_THEM,
    ),
    *(
        Rule(
            (DOWN, other),
            (Unless(DOWN, "none"), Unless(other, usual)),
            "what it makes of the model is another than the step that was coded",
            _ONE_OF_THEM,
        )
        for other, usual in (
            ("coefficient-period", 1),
            ("decomposition-average", "factors"),
            ("lora-average", "factors"),
        )
    ),
    Rule(
        ("compress-bits",),
        (lambda values: 16 < values["compress-bits"] < 32,),
        "16 bits are the most beside 32",
        "set 2 to 16, or 32",
    ),
)


def rules_of(method: "type[MethodDeclaration]") -> tuple[Rule, ...]:
    """Return the rules of all keys of the rounds, for a method."""
    return (
        *_OF_ROUNDS,
        *_of_replies(method),
        *_of_noise(method),
        *_OF_NOISE,
        *_of_decomposition(method),
        *rules_of_secure_sums(method),
        *_of_compression(method),
        *_OF_COMPRESSION,
    )


def alike(*conditions: With | Unless) -> tuple[Rule, ...]:
    """Return what changes nothing where a method counts all its clients alike.

    Parameters
    ----------
    *conditions
        When it does; none is always.
    """
    why, out = "its clients all count alike", "leave it out"
    keys = ("method", *(condition.key for condition in conditions))
    of_weights = f"{why}, and a median takes from liars but a weight above others'"
    # Of mixtures of models the median is not one of a client's own.
    median = (With("mix", "none"), lambda values: "median" in values["aggregator"])
    return (
        Rule(("max-client-weight", *keys), conditions, why, out, idle=True),
        Rule(
            ("liars", *keys, "aggregator", "mix"),
            (*conditions, *median),
            of_weights,
            out,
            idle=True,
        ),
    )


def of_declarations(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield what ``WITHOUT_EFFECT`` and ``FIXED`` of a method's class say."""
    for key, why in method.WITHOUT_EFFECT.items():
        yield Rule((key, "method"), (), why, "leave it out", idle=True)
    for key, needed in method.FIXED.items():
        condition = Unless(key, needed)
        yield Rule((key, "method"), (condition,), method.FIXED_REASON, f"set {needed!r}")


def _of_replies(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield what needs a number of replies, for where it is known."""

    def replies(values: Values) -> int:
        asked = values["clients-per-round"] or values["num-clients"]
        return method.replies_per_round(values, asked) if asked else 0

    def lack(values: Values) -> str:
        num = replies(values)
        return too_few(values["aggregator"], values["liars"], num) if num else ""

    asked = ("clients-per-round", "num-clients")
    yield Rule(
        ("quorum", *asked),
        (lambda values: 0 < replies(values) < values["quorum"],),
        lambda values: f"{replies(values)} replies close a round",
        "set no more",
    )
    yield Rule(
        ("aggregator", "liars", *asked),
        (lambda values: bool(lack(values)),),
        lack,
        "lower {liars}, or take more clients",
    )


def _of_noise(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield what noise at the server cannot go with."""
    release = method.released()
    for asked in (NOISE, TARGET):
        on = Unless(asked, 0.0)
        if release.kind == "refused":
            yield Rule(
                (asked, "method"),
                (on,),
                f"no epsilon holds for it: {release.why}",
                "leave it out, or choose another method, such as fedavg",
            )
        if release.kind == "weighted":
            yield Rule(
                (asked, "method", "dp-max-weight"),
                (on, With("dp-max-weight", 0.0)),
                "one client moves the model by up to 2 C where clients are weighed by what "
                "they report",
                "set {dp-max-weight}, such as 2 over the clients of a round, at the price "
                "of so much more noise, or choose fedavg",
            )
        for key, needed in release.needs.items():
            yield Rule(
                (asked, "method", key),
                (on, Unless(key, needed)),
                "a weight would depend on all clients' replies, which no cap bounds",
                f"set {{{key}}} = {needed!r}",
            )
    if release.kind == "mean":
        yield Rule(
            ("dp-max-weight", "method"),
            (),
            "it counts all clients alike under noise",
            "leave it out",
            idle=True,
        )


def _of_compression(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield that a method's clients have no shared model whose change could be coded."""
    if method.PRIVATE_MODELS or method.takes("networks"):
        for key in (UP, DOWN):
            yield Rule(
                (key, "method"),
                (Unless(key, "none"),),
                "its clients do not all train one shared model and send it back",
                "leave it out, or choose another method",
            )


def _of_decomposition(method: "type[MethodDeclaration]") -> Iterator[Rule]:
    """Yield what filter decomposition cannot go with, whose keys a layer brings."""
    another, why = "leave it out, or choose another method", ""
    if method.takes("groups"):
        why = "it divides the model itself"
    elif not method.trains_one_model():
        why = "its clients do not all train one shared model and send it back"
    for key in (key for key in KEYS if key.name in CLIENT_KEYS):
        acts = Unless(key.name, key.default)
        yield Rule(
            (key.name, "decomposition-average"),
            (acts, lambda values: values["decomposition-average"].endswith("-regauged")),
            "that changes atoms and coefficients together in each round",
            _ONE_OF_THEM,
        )
        if why:
            yield Rule((key.name, "method"), (acts,), why, another)
    if method.SCORED_MODEL != "shared":
        yield Rule(
            ("personal-atoms", "method"),
            (With("personal-atoms", True),),
            f"it scores clients with a {method.SCORED_MODEL} model already",
            another,
        )
    between_uploads = Unless("coefficient-period", 1)
    if method.SCORED_MODEL == "private":
        yield Rule(
            ("local-coefficients", "method", "coefficient-period"),
            (between_uploads, With("local-coefficients", "freeze")),
            "that would also freeze the private models, which never travel",
            "set 'discard' or 'persist'",
        )
    if method.CORRECTS_GRADIENTS:
        yield Rule(
            ("coefficient-period", "method", "local-coefficients"),
            (between_uploads, Unless("local-coefficients", "freeze")),
            "it corrects gradients by vectors of all that is trained",
            "set {local-coefficients} = 'freeze', which trains what travels and no more",
        )
