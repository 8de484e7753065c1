"""Keywords and state of every strategy, and what a method may use and override.

What runs the rounds stands above: :mod:`fedsuite.rounds.base`.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.logs import ServerLogger
from fedsuite.core.rules import Rule
from fedsuite.core.settings import given
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
from fedsuite.rounds.central_privacy import CentralPrivacy
from fedsuite.rounds.declaration import MethodDeclaration
from fedsuite.rounds.exchange import (
    FEDSUITE_KEYS,
    Exchange,
    RecordKeys,
    ReplyReader,
    Wire,
)
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.first_exchange import FirstExchanges
from fedsuite.rounds.guard import Guard, Limit
from fedsuite.rounds.infinite_entries import InfiniteEntries
from fedsuite.rounds.legacy_server import check_keywords, check_methods, missing
from fedsuite.rounds.membership import Directory, Identity, Members, Sampling
from fedsuite.rounds.metric_means import MetricMeans, MetricsFn
from fedsuite.rounds.quorum import Quorum
from fedsuite.rounds.recovery import Kept, Recovery
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.rules import of_declarations, rules_of
from fedsuite.rounds.server_step import ServerExtras
from fedsuite.rounds.update_norms import UpdateNorms
from fedsuite.rounds.validation import ClientReply, Expected, spec_of

logger = ServerLogger(__name__)


def _checking(cls: type) -> Callable[..., None]:
    """Return a class's constructor, with words of its own for unknown keywords."""
    made: Callable[..., None] = vars(cls)["__init__"]
    known = {field.name for field in fields(cls) if field.init}

    @wraps(made)
    def checked(self: object, *unnamed: object, **given: object) -> None:
        check_keywords(cls.__name__, known, given, len(unnamed))
        made(self, **given)

    return checked


class StrategyParts(RoundSettings, MethodDeclaration, Strategy):
    """Keywords and state of all strategies, and what methods override."""

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
    exchange_timeout: float = given(
        default=3600.0,
        help="seconds to wait for replies in exchanges that a method makes in a round",
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

    buffers: Collection[str] = given(
        default=(),
        help="names of the model's arrays that are measured or constant, not trained: they "
        "are averaged as they come, and no server rate or momentum moves them. Integer "
        "arrays and torch's running statistics are known without",
    )

    layer: ExchangeLayer = given(
        default_factory=ExchangeLayer,
        help="what stands between the strategy and its clients, such as "
        "FilterDecomposition; a layer serves one strategy",
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_methods(cls)
        # The constructor that was made of the fields names neither what stands for an
        # unknown keyword nor what is like it.
        if "_MADE" in vars(cls):
            cls.__init__ = _checking(cls)  # type: ignore[method-assign]

    if not TYPE_CHECKING:
        # Hidden, so that mypy still knows which attributes there are.
        def __getattr__(self, name: str) -> NoReturn:
            """Say what to write to who calls a method of Flower's legacy strategies."""
            raise missing(type(self).__name__, name)

    @classmethod
    @override
    def rules(cls) -> tuple[Rule, ...]:
        # What the method has no use for comes first: no other key would give it an effect.
        return (*of_declarations(cls), *super().rules(), *rules_of(cls))

    @override
    def values(self) -> dict[str, Any]:
        return {
            **super().values(),
            **self.layer.values(),
            "method": type(self).__name__,
            "num-clients": self.num_clients,
            "decomposition": type(self.layer) is not ExchangeLayer,
        }

    @override
    def unchanged(self) -> Mapping[str, Any]:
        values = self.values()
        of_paper = {k: v for k, v in self.PAPER.items() if values.get(k) == v}
        return {**super().unchanged(), **of_paper}

    def __post_init__(self) -> None:
        """Check the keywords, and make what the rounds need."""
        super().__post_init__()
        hosts_clients = self.identity == "partition" or bool(self.site_names)
        self._refuse_legacy(hosts_clients)
        per_round, seed = self.clients_per_round, self.seed
        self.sampling = {
            TRAIN: Sampling(
                TRAIN, self.fraction_train, self.min_train_nodes, seed, per_round
            ),
            EVALUATE: Sampling(
                EVALUATE, self.fraction_evaluate, self.min_evaluate_nodes, seed
            ),
        }
        awaited = self.min_available_nodes
        waits_for_all = f"all ({awaited} has no effect with {self.identity!r})"
        self.nodes_awaited = waits_for_all if hosts_clients else str(awaited)
        self.min_available_nodes = max(awaited, 1)
        self.judge = Quorum(self.quorum, self.max_failed_rounds)
        self._keys = RecordKeys(self.arrayrecord_key, self.configrecord_key)
        functions = {
            TRAIN: self.train_metrics_aggr_fn,
            EVALUATE: self.evaluate_metrics_aggr_fn,
        }
        self._means = {
            phase: MetricMeans(phase, function, self.weighted_by_key)
            for phase, function in functions.items()
        }
        self.update_norms = UpdateNorms()
        self.guard = Guard(
            Limit.parse("max_examples", self.max_examples),
            Limit.parse("max_update_norm", self.max_update_norm),
            self.claims(),
        )
        self.averaging = Averaging(self)
        self.extras = ServerExtras(optimizer=self, fedvarp=self.fedvarp)
        self.recovery = Recovery()
        weighted = self.released().kind == "weighted"
        self.privacy = (
            CentralPrivacy(self, self.seed, weighted=weighted)
            if self.dp_noise_multiplier or self.target_epsilon
            else None
        )
        self.directory = Directory(
            self.identity,
            self.num_clients,
            self.connect_timeout,
            self.source_hash,
            self.public_fingerprint,
            self.site_names,
            self.plug_ins,
        )
        self.reports: dict[str, PhaseReport] = {}
        self.client_versions: dict[int, str] = {}
        self.checkpoint_versions: list[Mapping[int, str]] = []
        self.kept_versions: dict[int, str] = {}
        # Number of the run's attempt, in names of versions; 0 adds none.
        self.attempt = 0
        self.server_round = 0
        self.round_metrics: dict[str, float] = {}
        self.first = FirstExchanges(type(self).__name__, self.NEEDS_OF_CLIENT)
        self._exchange_index = 0
        self._grid: Grid | None = None
        self._members = Members([], {})
        self._given = self._record = ArrayRecord()
        self._arrays: Arrays = {}
        self._pending: dict[str, ReplyReader] = {}
        self._told_conversion = False
        self._told_left_out: set[tuple[int, str]] = set()
        self._infinite = InfiniteEntries({})
        self.chosen_by: Collection[str] = ()
        self._clipped_by_flower = False
        self.layer.attach(self)

    def keep_states_of(self, checkpoints: Sequence[Mapping[int, str]]) -> None:
        """Have clients keep the versions of their state that these checkpoints need.

        Parameters
        ----------
        checkpoints
            Client to version, oldest checkpoint first.
        """
        self.checkpoint_versions = list(checkpoints)
        kept: dict[int, list[str]] = {}
        for versions in checkpoints:
            for client_id, version in versions.items():
                known = kept.setdefault(client_id, [])
                if version not in known:
                    known.append(version)
        self.kept_versions = {k: ",".join(known) for k, known in kept.items()}

    def restore_extras(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what the optimiser, FedVARP, the guard and the way back remembered."""
        self.extras.restore(self.guard.restore(self.recovery.restore(state)))

    def extras_state(self) -> Arrays:
        """Return what :meth:`restore_extras` takes back."""
        return {**self.extras.state(), **self.guard.state(), **self.recovery.state()}

    def _kept(self, server_round: int, arrays: ArrayRecord) -> Kept:
        """Return what the server has before a round."""
        method, scalars = self.state()
        extra = {**self.extras.state(), **self.guard.state()}
        return Kept(server_round - 1, arrays, method, scalars, extra, {})

    def _refuse_legacy(self, hosts_clients: bool) -> None:
        legacy = self.wire == "numpy"
        if legacy and self.NOT_LEGACY:
            raise ValueError(f"wire = 'numpy': {self.NOT_LEGACY}")
        if legacy and self.identity == "partition":
            raise ValueError(
                "wire = 'numpy' cannot go with identity = 'partition': a legacy "
                "NumPyClient does not answer the hello, and a node hosts one client"
            )
        keys = RecordKeys(self.arrayrecord_key, self.configrecord_key)
        if keys != FEDSUITE_KEYS and (legacy or hosts_clients):
            raise ValueError(
                f"arrayrecord_key = {self.arrayrecord_key!r}, configrecord_key = "
                f"{self.configrecord_key!r}: legacy NumPyClients (wire = 'numpy') and "
                "fedsuite's clients on shared nodes have names of their own: leave both out"
            )

    # ----------------------------------------------------------------- for methods to use

    def average(
        self, replies: Iterable[ClientReply], weights: Iterable[float] | None = None
    ) -> Arrays | None:
        """Return the average of the clients' models that the keys ask for.

        None where no client has weight: the old arrays stay. The report gets the weights.

        Parameters
        ----------
        replies
            In client order; taken one at a time where the average is the mean.
        weights
            One >= 0 a reply, of any sum; None takes the numbers of examples.
        """
        made = self.averaging.of(replies, weights)
        if made.weights and made.arrays is None:
            logger.warning("no client has examples: the model stays as it was")
        self.record_weights(made.weights)
        return made.arrays

    def record_weights(self, weights: Mapping[int, float]) -> None:
        """Put the clients' weights, as shares of 1, into the round's report.

        The row of each client gets ``weight``, the round ``effective_clients``,
        1 / sum of squared shares: m for equal weights, 1 if one client has all.
        """
        shares = np.array(list(weights.values()))
        shares = shares / shares.sum() if shares.any() else shares
        if TRAIN in self.reports:
            for client_id, share in zip(weights, shares, strict=True):
                self.reports[TRAIN].annotate(client_id, weight=float(share))
        squares = float((shares**2).sum())
        self.round_metrics["effective_clients"] = 1.0 / squares if squares else 0.0

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

    def claims(self) -> Mapping[str, Limit]:
        """Return the metrics that clients are weighed by, with what the guard believes."""
        return {}

    @abstractmethod
    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        """Return the new global arrays, or None to keep the old ones.

        Parameters
        ----------
        arrays
            Global arrays that were sent, read-only.
        replies
            Good replies in client-id order. Taking them one at a time keeps the memory
            of a mean flat; all must be taken before an exchange of the method's own.
        """

    def log_weights(self, replies: Sequence[ClientReply]) -> Vector:
        """Return the logarithms of the clients' weights under noise, up to a constant.

        For methods whose class declares ``PRIVACY`` of the kind ``weighted``: each number
        depends on one reply alone.
        """
        raise TypeError(f"{type(self).__name__} gives no weights")

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
