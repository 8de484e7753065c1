"""What a method declares of itself: its keys, and what its constructor must be given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedsuite.core.keys import Key, Value
from fedsuite.rounds.round_settings import AVERAGE_KEYS, RoundSettings

Part = Literal["groups", "validation", "networks", "num_classes", "public", "public_rows"]
"""What a run can fill in; a strategy declares a field of that name with ``part``.

groups: the model's ParameterGroups. validation: scores models on rows of the server.
networks: the clients' networks, which may differ unless groups or validation are taken too.
num_classes: number of classes. public_rows: number of public samples, which clients then
need. public: the public data itself.
"""

ScoredModel = Literal["shared", "tuned", "private"]

NO_COMMON_STEP: Mapping[str, str] = dict.fromkeys(
    ("server-momentum", "server-optimizer", "fedvarp"),
    "its clients do not all train one shared model and send it back",
)
"""The extras of the server, where it takes no step from one shared model to the next."""

NO_MODEL_BACK: Mapping[str, str] = {
    "max-update-norm": "no client sends back a model or what it changed"
}
"""What needs a model, or a part of one, in the replies."""

NO_WHOLE_MODEL: Mapping[str, str] = {
    "score-training-data": "no client receives a whole model to score"
}
"""What needs a whole model in the message."""


OWN_RULE: Mapping[str, str] = dict.fromkeys(
    AVERAGE_KEYS, "its aggregation is a rule of its own"
)
"""What needs an average of models: a class that takes one by ``self.average`` says so by
leaving it out of its own ``WITHOUT_EFFECT``."""


@dataclass(frozen=True)
class Release:
    """What a round of a method releases, on which an epsilon is a promise.

    Parameters
    ----------
    kind
        ``mean``: the sum of the clients' clipped changes of one shared model, over a fixed
        number; one client moves it by C at most. ``weighted``: their mean with weights that
        each depend on one client's reply, up to a common factor; one client moves it by
        2 C times the largest weight. ``refused``: something else.
    why
        Why that holds, or why the method is refused; a clause without a subject's name.
    needs
        Values of the method's own keys without which the weights are of another form.
    """

    kind: Literal["mean", "weighted", "refused"]
    why: str
    needs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Summed:
    """How a method's step follows from sums of what its clients send.

    Parameters
    ----------
    weight
        What a client counts with: its examples, or 1 if it has some.
    examples_if
        Boolean key with which it counts with its examples after all; empty of none.
    form
        What the weight is multiplied by: ``plain`` by 1, ``per-step`` by 1 over its number
        of steps, ``tilted`` by exp(t F), ``softmax`` by exp(F / t), ``raised`` by F^t as in
        q-FedAvg, with F the client's own loss.
    rate
        Key of t.
    loss
        Metric of F.
    most_loss
        Key of a method's own bound of F, where 0 sets none; empty of none.
    records
        Records that add up beside the model, of each client alike.
    exact
        Whether clients keep what belongs to their change, and so cannot scale it down.
    needs
        Key of the method's own to the value without which its step is no such sum, and why,
        a clause.
    """

    weight: Literal["examples", "clients"] = "examples"
    examples_if: str = ""
    form: Literal["plain", "per-step", "tilted", "softmax", "raised"] = "plain"
    rate: str = ""
    loss: str = ""
    most_loss: str = ""
    records: tuple[str, ...] = ()
    exact: bool = False
    needs: Mapping[str, tuple[Value, str]] = field(default_factory=dict)


UNARGUED = Release(
    "refused",
    "its class does not say what a round of it releases: see PRIVACY in "
    "fedsuite.rounds.declaration",
)


@dataclass(frozen=True)
class NeededMetric:
    """A metric that a method needs in each reply to its training message.

    Parameters
    ----------
    name
        Its name, unless the keyword says otherwise.
    keyword
        Keyword of the constructor that an app of other habits is served by.
    meaning
        What the metric holds.
    gives
        What the keyword gives.
    """

    name: str
    keyword: str
    meaning: str
    gives: str = "the name that it has"

    @property
    def advice(self) -> str:
        """What to do where replies lack it."""
        report = f"report {self.meaning} as {self.name!r}"
        return f"{report}, or give {self.gives} as {self.keyword}"


@dataclass(frozen=True)
class ClientNeeds:
    """What a method needs of a client that sends back a model and its number of examples.

    Parameters
    ----------
    client
        The class of :mod:`fedsuite.clients` that does it, or ``module:Class`` of another
        package; empty where any client will do. A client of one's own may do the same.
    does
        What that class does, to follow "which".
    metrics
        Metrics that each reply must hold, where the class is not needed.
    stores
        Whether the client keeps something between rounds and says so, by the metric
        ``stored-state``: the method is another one without.
    trusted
        Whether a run goes on, after a warning, where no client says that it followed the
        method's settings: Flower's own strategy of that name trusts the app.
    """

    client: str = ""
    does: str = ""
    metrics: tuple[NeededMetric, ...] = ()
    stores: bool = False
    trusted: bool = False

    @property
    def words(self) -> str:
        """The needs in a few words, for tables."""
        if self.client:
            return self.client
        metrics = (f"metric {metric.name} ({metric.keyword})" for metric in self.metrics)
        return ", ".join(metrics) or "nothing"

    @property
    def advice(self) -> str:
        """What to do where replies lack something; empty where nothing is needed."""
        if self.client:
            own = ":" in self.client
            client = self.client if own else f"fedsuite.clients.{self.client}"
            return f"train with {client}, which {self.does}"
        return "; ".join(metric.advice for metric in self.metrics)

    def advice_on(self, settings: Mapping[str, Value]) -> str:
        """Return what to do where replies do not repeat these settings."""
        numbers = [k for k, value in settings.items() if not isinstance(value, str)]
        texts = [k for k, value in settings.items() if isinstance(value, str)]
        places = {"the metrics": numbers, "a ConfigRecord 'followed'": texts}
        back = " and ".join(f"{', '.join(n)} in {p}" for p, n in places.items() if n)
        own = f"a client of your own that does so sends back {back} of its replies"
        return f"{self.advice}; {own}" if self.client else own


class MethodDeclaration:
    """Class variables that experiments, engines and analyses read before a run starts."""

    _TOLD: ClassVar[Mapping[str, str]]

    KEYS: ClassVar[tuple[Key, ...]]
    """All keys that are keywords of the constructor, those of every round among them."""

    DEFAULTS: ClassVar[Mapping[str, Value]] = {}
    """The method's own defaults of keys that are declared elsewhere; those of local work
    and of the optimiser give way where an experiment names a key of the same group, see
    :mod:`fedsuite.experiment.own_defaults`."""

    PAPER: ClassVar[Mapping[str, Value]] = {}
    """The paper's values of keys whose defaults are others: ``preset = "paper"``."""

    UNUSED: ClassVar[Sequence[str]] = ()
    """Keys declared elsewhere that the method by its definition makes no use of."""

    FIXED: ClassVar[Mapping[str, Value]] = {}
    """Keys declared elsewhere that the method needs at these values: others are refused."""

    FIXED_REASON: ClassVar[str] = ""
    """Why other values are refused, for the error; empty says nothing."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = OWN_RULE
    """Keys declared elsewhere that change nothing with the method, and why: other values
    than their defaults are refused."""

    FEATURE_WEIGHT: ClassVar[str] = ""
    """Key that weighs a term on clients' features: above 0 it is refused where no client
    has anything to train before its classifier. Empty has no such term."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds()
    """What clients must do beside training the model that they got."""

    NOT_LEGACY: ClassVar[str] = ""
    """Why a legacy NumPyClient (``wire="numpy"``) cannot serve it; empty where it can."""

    READING: ClassVar[str] = ""
    """In a few words for a footnote to its results, what of the paper's method this is not;
    empty where the docstring's deviations should not change a comparison."""

    PRIVATE_MODELS: ClassVar[bool] = False
    """Whether clients keep their models, which the server never sees and which may differ:
    it starts with no arrays."""

    OWN_MODELS: ClassVar[bool] = False
    """Whether the server has several models, such as one for each client, in place of one
    for all."""

    NO_GLOBAL_MODEL: ClassVar[str] = ""
    """Why a run ends without one whole model for all; empty where it has one."""

    SCORED_MODEL: ClassVar[ScoredModel] = "shared"
    """Which model clients are scored with where they train a shared one: that, a copy tuned
    for the scoring, or a private one that each keeps and trains beside it."""

    CORRECTS_GRADIENTS: ClassVar[bool] = False
    """Whether clients correct their gradients by vectors, kept or received, of all that is
    trained. What is trained and then thrown away would be in those vectors."""

    PRIVACY: ClassVar[Release] = UNARGUED
    """What a round releases under noise at the server; see :meth:`released` for when a
    subclass inherits it."""

    SUMS: ClassVar[Summed | None] = None
    """How the step follows from sums; None of no such step, or of one that is the mean of
    the models by examples, as :attr:`PRIVACY` says. Inherited as that is."""

    PARTS: ClassVar[frozenset[str]]
    """Keywords that a run fills with what it has, see :data:`Part`."""

    @classmethod
    def takes(cls, part: Part) -> bool:
        """Return whether a run fills a keyword of the constructor."""
        return part in cls.PARTS

    @classmethod
    def replies_per_round(cls, values: Mapping[str, Value], num_clients: int) -> int:
        """Return how many replies close a round that asks so many clients."""
        return num_clients

    @classmethod
    def method_keys(cls) -> tuple[Key, ...]:
        """Return the keys that are the method's own."""
        shared = {key.name for key in RoundSettings.KEYS}
        return tuple(key for key in cls.KEYS if key.name not in shared)

    @classmethod
    def needed_elsewhere(cls) -> str:
        """Return what clients of another Flower app are to do; empty of nothing."""
        needs, settings = cls.NEEDS_OF_CLIENT, ", ".join(cls._TOLD)
        own = f"; clients of your own do the same, and send back {settings}"
        return needs.advice + own if needs.client and settings else needs.advice

    @classmethod
    def released(cls) -> Release:
        """Return what a round releases under noise at the server.

        Whatever a client does, it knows its own rows and what was released before: so it
        cannot make a class's statement false. What the server does can. So a class that
        overrides a method of the one whose :attr:`PRIVACY` it inherits says anew what it
        releases, or is refused. A refusal is inherited.
        """
        source: Any = next(base for base in cls.__mro__ if "PRIVACY" in vars(base))
        other_round = cls._has_another_round_than(source)
        return UNARGUED if other_round and source.PRIVACY.kind != "refused" else cls.PRIVACY

    @classmethod
    def summed(cls) -> Summed | None:
        """Return :attr:`SUMS`; None where a class has another round than who says it."""
        source: Any = next(base for base in cls.__mro__ if "SUMS" in vars(base))
        return None if cls._has_another_round_than(source) else cls.SUMS

    @classmethod
    def _has_another_round_than(cls, source: Any) -> bool:
        """Return whether the class overrides a method of one of its ancestors."""
        abstract: frozenset[str] = getattr(source, "__abstractmethods__", frozenset())
        return any(
            hasattr(source, name) and name not in abstract and name != "__init__"
            for base in cls.__mro__
            if base not in source.__mro__
            for name, value in vars(base).items()
            if callable(getattr(base, name)) or isinstance(value, property)
        )

    @classmethod
    def no_model_for_new(cls) -> str:
        """Return why a client that never trains has no model; empty if it has one.

        It gets the shared model, or what the method tunes or chooses for it when it is
        evaluated.
        """
        return "" if cls.SCORED_MODEL == "tuned" else cls.NO_GLOBAL_MODEL

    @classmethod
    def trains_one_model(cls) -> bool:
        """Return whether the clients of a round all train the one model that is sent."""
        return not (cls.PRIVATE_MODELS or cls.takes("networks") or cls.OWN_MODELS)
