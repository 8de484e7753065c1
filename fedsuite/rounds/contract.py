"""What a method is to its author: keywords of the constructor, and what it may override.

What runs its rounds is in :mod:`fedsuite.rounds.strategy`.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from flwr.serverapp.strategy import Strategy
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.logs import ServerLogger
from fedsuite.core.rules import Rule
from fedsuite.core.settings import Declared, given, help_of, state
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import (
    ARRAYS,
    CONFIG,
    EVALUATE,
    NUM_EXAMPLES,
    TRAIN,
    Arrays,
    ConfigValue,
)
from fedsuite.rounds.average import Averaging
from fedsuite.rounds.declaration import MethodDeclaration
from fedsuite.rounds.exchange import (
    FEDSUITE_KEYS,
    Exchange,
    RecordKeys,
    Wire,
)
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.legacy_server import (
    KEYWORDS,
    LegacyClientError,
    by_position,
    check_functions,
    check_keywords,
    check_methods,
    check_needed,
    missing,
)
from fedsuite.rounds.membership import Identity
from fedsuite.rounds.report import MetricsFn, PhaseReport
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.rules import of_declarations, rules_of
from fedsuite.rounds.taken_names import check_names, hidden, hides, replaces, taken
from fedsuite.rounds.validation import ClientReply, Expected, spec_of

logger = ServerLogger(__name__)

_READ_ANEW = frozenset(
    {
        *("fraction_train", "fraction_evaluate"),
        *("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"),
    }
)
"""Keywords of Flower's strategies that apps set from round to round."""


def _checking(cls: type) -> Callable[..., None]:
    """Return a class's constructor, with words of its own for unknown keywords."""
    constructor: Callable[..., None] = vars(cls)["__init__"]
    known = {field.name for field in fields(cls) if field.init}
    needed = {
        field.name: help_of(field)
        for field in fields(cls)
        if field.init and field.default is field.default_factory is MISSING
    }

    @wraps(constructor)
    def checked(self: object, *unnamed: object, **given: object) -> None:
        if unnamed or not given.keys() <= known:
            given = by_position(cls.__name__, unnamed, given)
            check_keywords(cls.__name__, known, given)
        if not needed.keys() <= given.keys():
            check_needed(cls.__name__, needed, given)
        constructor(self, **given)

    return checked


class MethodContract(RoundSettings, MethodDeclaration, Strategy):
    """Keywords of all strategies, and what methods override."""

    fraction_train: float = given(
        default=1.0, help="share of the clients that train in a round; 0 skips the phase"
    )
    fraction_evaluate: float = given(
        default=1.0,
        help="share of the clients that are evaluated in a round; 0 skips the phase",
    )
    min_train_nodes: int = given(default=2, help="least number of clients that train")
    min_evaluate_nodes: int = given(
        default=2, help="least number of clients that are evaluated"
    )
    min_available_nodes: int = given(
        default=2, help="least number of nodes before a round starts"
    )
    num_clients: int | None = given(
        default=None,
        help="number of clients where nodes may host several (identity='partition')",
    )
    num_rounds: int = given(
        default=0, help="number of rounds planned; 0 if not known; start() sets it"
    )
    weighted_by_key: str = given(
        default=NUM_EXAMPLES, help="metric that holds the number of examples"
    )
    arrayrecord_key: str = given(
        default=ARRAYS,
        help="name of the model's record in messages, as in Flower; in replies the model "
        "may have that name too. For clients of your own app: fedsuite's clients and "
        "legacy ones have names of their own",
    )
    configrecord_key: str = given(
        default=CONFIG, help="name of the settings' record in messages, as in Flower"
    )
    train_metrics_aggr_fn: MetricsFn | None = given(
        default=None,
        help="makes the MetricRecord of the good replies to training, as in Flower; None "
        "is the mean, weighted by examples. It changes no row that a client has in a "
        "report",
    )
    evaluate_metrics_aggr_fn: MetricsFn | None = given(
        default=None, help="makes the MetricRecord of the good replies to evaluation"
    )
    identity: Identity = given(
        default="node",
        help="what a client is: node, partition or registered; see "
        "fedsuite.rounds.membership.Directory",
    )
    wire: Wire = given(
        default="message", help="message, or numpy for apps made of legacy NumPyClients"
    )
    exchange_timeout: float | None = given(
        default=None,
        help="seconds to wait for replies in exchanges that a method makes in a round; "
        "None waits as long as start() is told, or 3600 s in a loop of the app's own",
    )
    training_rows: Mapping[int, int] = given(
        default_factory=dict,
        help="client to its number of training rows, where the server knows it: a client "
        "counts for no more examples",
    )
    source_hash: str | None = given(
        default=None,
        help="hash that nodes must report of their fedsuite code; None skips the check",
    )
    plug_ins: str | None = given(
        default=None,
        help="fingerprint that nodes must report of code that is not fedsuite's; None "
        "skips the check",
    )
    public_fingerprint: str | None = given(
        default=None,
        help="fingerprint that nodes must report of their public data; None skips it",
    )
    site_names: Sequence[str] = given(
        default=(),
        help="names of the clients in order, where they have some; with registered those "
        "of the nodes that take part, client k being the k-th. Empty takes all nodes",
    )

    evaluation_only: Collection[int] = given(
        default=(),
        help="clients that never train and are evaluated all the same; nodes of sites may "
        "say so of themselves",
    )

    buffers: Collection[str | int] | None = given(
        default=None,
        help="names, or positions from 0, of the model's arrays that are measured or "
        "constant, not trained: they are averaged as they come, and no server rate or "
        "momentum moves them. Integer arrays, and the statistics of layers of torch, Keras "
        "and Flax, are known without. None says that there may be others: what no client "
        "has below 0 stays so",
    )

    halves: Collection[str] = given(
        default=(),
        help="names of the model's arrays that are bfloat16 at fedsuite's clients: they "
        "travel so, in 2 bytes a number, and the server's model has no other values there",
    )

    layer: ExchangeLayer = given(
        default_factory=ExchangeLayer,
        help="what stands between the strategy and its clients, such as "
        "FilterDecomposition; a layer serves one strategy",
    )

    _KEYWORDS: ClassVar[frozenset[str]] = frozenset()
    _built: bool = state(default_factory=bool)
    _parts: frozenset[str] = state(default_factory=frozenset)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__module__.startswith("fedsuite."):
            check_methods(cls)
            check_names(cls)
        # What a subclass of an app's annotates, and does not declare, is its own.
        cls._KEYWORDS = frozenset(f.name for f in fields(cls) if f.init and f.metadata)
        # The constructor that was made of the fields names neither what stands for an
        # unknown keyword nor what is like it.
        if "_MADE" in vars(cls):
            cls.__init__ = _checking(cls)  # type: ignore[method-assign]

    if not TYPE_CHECKING:
        # Hidden, so that mypy still knows which attributes there are.
        def __getattr__(self, name: str) -> NoReturn:
            """Say what to write to who calls a method of Flower's legacy strategies."""
            raise missing(type(self).__name__, name)

        def __setattr__(self, name: str, value: object) -> None:
            """Set an attribute; of keywords those alone that each round reads anew."""
            own = type(self).__module__.startswith("fedsuite.")
            if not (own or callable(value)) and hidden(type(self), name):
                raise hides(type(self), name)
            made = vars(self)
            if name in made.get("_parts", ()) and replaces(made[name], value):
                raise taken(type(self), name)
            built = name in self._KEYWORDS and vars(self).get("_built")
            if built and not (self._may_be_set(name) or self._has(name, value)):
                strategy = type(self).__name__
                raise ConfigError(
                    f"{strategy}.{name} cannot be set: give it to the constructor, "
                    f"{strategy}({name}=...), or in a subclass's __init__ to "
                    "super().__init__()"
                )
            if own and name in KEYWORDS and vars(self).get("_built"):
                # A subclass of an app's may read it; of a class of ours nobody would.
                check_keywords(type(self).__name__, self._KEYWORDS, [name])
            super().__setattr__(name, value)

    @classmethod
    @override
    def rules(cls) -> tuple[Rule, ...]:
        # What the method has no use for comes first: no other key would give it an effect.
        return (*of_declarations(cls), *super().rules(), *rules_of(cls))

    @override
    def values(self) -> dict[str, Any]:
        new = len(self.evaluation_only)
        return {
            **super().values(),
            **self.layer.values(),
            "method": type(self).__name__,
            "num-clients": (self.num_clients or new) - new,
            "decomposition": type(self.layer) is not ExchangeLayer,
        }

    @override
    def unchanged(self) -> Mapping[str, Any]:
        values = self.values()
        of_paper = {k: v for k, v in self.PAPER.items() if values.get(k) == v}
        return {**super().unchanged(), **of_paper}

    @classmethod
    def of_paper(cls, **given: Any) -> Self:
        """Return the strategy with its paper's values, where the defaults are others.

        Parameters
        ----------
        **given
            Keywords of the constructor, which win.
        """
        values = {name.replace("-", "_"): value for name, value in cls.PAPER.items()}
        return cls(**values | given)

    def __post_init__(self) -> None:
        """Check the keywords, and make what follows from them.

        An overriding method calls this one first.
        """
        super().__post_init__()
        self._refuse_legacy()
        check_functions(
            train_metrics_aggr_fn=self.train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=self.evaluate_metrics_aggr_fn,
        )
        self.reports: dict[str, PhaseReport] = {}
        self.round_metrics: dict[str, float] = {}
        for phase in (TRAIN, EVALUATE):
            self.fraction(phase)
        self.averaging = Averaging(self)
        self._average = self.averaging.begin()
        self.layer.check(self)
        self._built = True

    def _may_be_set(self, name: str) -> bool:
        """Return whether a keyword may be set later: nothing is made of it but a draw.

        Under noise at the server the account of epsilon stands on the draws too.
        """
        noise = self.dp_noise_multiplier or self.target_epsilon
        return name == "num_rounds" or (name in _READ_ANEW and not noise)

    def _has(self, name: str, value: object) -> bool:
        """Return whether a keyword has this value already.

        Subclasses of Flower's FedAvg often set once more what they have given on.
        """
        present = getattr(self, name)
        if present is value:
            return True
        plain = isinstance(value, str | int | float)
        return plain and type(present) is type(value) and present == value

    def begin_afresh(self) -> None:
        """Forget what earlier rounds have left; the keywords stay."""
        for declared in (self.layer, self):
            if not isinstance(declared, Declared):
                continue
            for member in fields(declared):
                if not member.init and callable(member.default_factory):
                    vars(declared)[member.name] = member.default_factory()
            declared.__post_init__()

    def settings_in(self, config: Mapping[str, ConfigValue]) -> dict[str, Value]:
        """Return those of the method's settings that a message holds, as they are here."""
        names = [name for name in self._TOLD if name in config]
        return {name: getattr(self, name.replace("-", "_")) for name in names}

    def fraction(self, phase: str) -> float:
        """Return the share of the clients that take part in a phase; 0 skips it."""
        share = self.fraction_train if phase == TRAIN else self.fraction_evaluate
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"fraction_{phase} = {share}: expected 0 to 1")
        return share

    def num_drawn(self, phase: str, num_clients: int) -> int:
        """Return how many of so many clients take part in a phase."""
        if phase == TRAIN and self.clients_per_round:
            return self.clients_per_round
        least = self.min_train_nodes if phase == TRAIN else self.min_evaluate_nodes
        return max(int(num_clients * self.fraction(phase)), least)

    def record_keys(self) -> RecordKeys:
        """Return the app's names of records."""
        return RecordKeys(self.arrayrecord_key, self.configrecord_key)

    @property
    def hosts_clients(self) -> bool:
        """Whether a node may host several clients, or clients have names."""
        return self.identity == "partition" or bool(self.site_names)

    def _refuse_legacy(self) -> None:
        legacy = self.wire == "numpy"
        if legacy and self.NOT_LEGACY:
            raise LegacyClientError(
                f"wire = 'numpy': {self.NOT_LEGACY}: for {type(self).__name__} write the "
                "client with @app.train(), as docs/how-to/own_clients.md shows, and leave "
                "wire out"
            )
        if legacy and self.identity == "partition":
            raise ValueError(
                "wire = 'numpy' cannot go with identity = 'partition': a legacy "
                "NumPyClient does not answer the hello, and a node hosts one client"
            )
        if self.record_keys() != FEDSUITE_KEYS and (legacy or self.hosts_clients):
            raise ValueError(
                f"arrayrecord_key = {self.arrayrecord_key!r}, configrecord_key = "
                f"{self.configrecord_key!r}: legacy NumPyClients (wire = 'numpy') and "
                "fedsuite's clients on shared nodes have names of their own: leave both out"
            )

    # ------------------------------------------------------------------- for methods to use

    def average(
        self,
        replies: Sequence[ClientReply],
        weights: Sequence[float] | Vector | None = None,
    ) -> Arrays | None:
        """Return the average of the models in replies that were gathered.

        None where no client has weight: the old arrays stay. The report gets the weights.

        Parameters
        ----------
        replies
            In client order; all are held. :meth:`take` takes them one at a time.
        weights
            One >= 0 a reply, of any sum; None takes the numbers of examples.
        """
        self._average = self.averaging.begin()
        if weights is None:
            weights = [reply.num_examples for reply in replies]
        for reply, weight in zip(replies, weights, strict=True):
            self._average.add(reply, float(weight), self.neutral_weight_of(reply))
        return self.average_taken()

    def average_taken(self) -> Arrays | None:
        """Return the average of the models that were taken; see :meth:`average`."""
        average = self._average.result()
        self._average = self.averaging.begin()
        if average.weights and average.arrays is None:
            logger.warning("no client has examples: the model stays as it was")
        self.record_weights(average.weights)
        return average.arrays

    def record_weights(self, weights: Mapping[int, float]) -> None:
        """Put the clients' weights, as shares of 1, into the round's report.

        The row of each client gets ``weight``, the round ``effective_clients``,
        1 / sum of squared shares: m for equal weights, 1 if one client has all.
        """
        shares = np.array(list(weights.values()))
        shares = shares / shares.sum() if shares.any() else shares
        for client_id, share in zip(weights, shares, strict=True):
            self.annotate(client_id, weight=float(share))
        squares = float((shares**2).sum())
        self.round_metrics["effective_clients"] = 1.0 / squares if squares else 0.0

    def annotate(self, client_id: int, **values: float) -> None:
        """Add columns to a client's row in the report of the round's training."""
        if TRAIN in self.reports:
            self.reports[TRAIN].annotate(client_id, **values)

    # ------------------------------------------------------------- for methods to override

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Return what is sent to train, and what must come back.

        Called once a round, inside ``configure_train``; a method may call
        :meth:`exchange` here for what it must know first.

        Parameters
        ----------
        arrays
            Global arrays, read-only.
        client_ids
            The clients sampled for this round, sorted.
        """
        return Exchange(
            TRAIN,
            client_ids,
            shared={ARRAYS: arrays},
            config=self.told(TRAIN),
            expected=Expected({ARRAYS: spec_of(arrays)}),
        )

    def claims(self) -> Collection[str]:
        """Return the metrics of a reply that steer the model, beside its size.

        Nothing else in the metrics may: what a client says of itself moves its share within
        :func:`~fedsuite.rounds.round_settings.share_ratio_key`, and is finite or not used.
        """
        return ()

    def begin_aggregation(self, arrays: Arrays) -> None:
        """Begin sums of the method's own: the replies of a round come now.

        What an earlier round has left is to be forgotten: it may have failed.

        Parameters
        ----------
        arrays
            Global arrays that were sent, read-only.
        """

    def take(self, reply: ClientReply) -> None:
        """Take in one good reply; they come in client order, each gone before the next.

        By default the reply's model is added to the average, by :meth:`weight_of`.
        """
        neutral = self.neutral_weight_of(reply)
        self._average.add(reply, self.weight_of(reply), neutral)

    def weight_of(self, reply: ClientReply) -> float:
        """Return the weight >= 0 of a reply in the average; its number of examples."""
        return reply.num_examples

    def neutral_weight_of(self, reply: ClientReply) -> float:
        """Return a reply's weight if no client claimed anything but its size.

        A method with :func:`~fedsuite.rounds.round_settings.share_ratio_key` grants no
        client more than so many times the share that these weights give.
        """
        return reply.num_examples

    @abstractmethod
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        """Return the new global arrays, or None to keep the old ones.

        Called when all replies have been taken, and there are as many as the quorum.

        Parameters
        ----------
        arrays
            Global arrays that were sent, read-only.
        """

    def log_weights(self, replies: Sequence[ClientReply]) -> Vector:
        """Return the logarithms of the clients' weights under noise, up to a constant.

        For methods whose class declares ``PRIVACY`` of the kind ``weighted``: each number
        depends on one reply alone.
        """
        raise TypeError(f"{type(self).__name__} gives no weights")

    def counted(self, arrays: Arrays) -> None:
        """Hear that the model took the round's step; ``arrays`` are the new ones."""

    def discarded(self) -> None:
        """Hear that the model stays as it was: too few replies, or no usable step."""

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Return what is sent to evaluate, and what must come back."""
        return Exchange(
            EVALUATE, client_ids, shared={ARRAYS: arrays}, config=self.told(EVALUATE)
        )

    def finish_round(self) -> None:
        """Do what the method must do after a round, such as a decay; once a round."""

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return what the method must remember between rounds: arrays and scalars."""
        return {}, {}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`state` returned."""
