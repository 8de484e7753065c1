"""Filter decomposition: fast atoms, slow coefficients, personal atoms.

W. Chen, Q. Qiu: Extra Clients at No Extra Cost: Overcome Data Heterogeneity in Federated
Learning with Filter Decomposition, ICML 2025, arXiv:2503.08652.

The base variant, equations 4 to 6, is any strategy over a decomposed model's arrays,
without this file. The product of averages holds latent clients (equation 8):

    (sum_k p_k A_k) x (sum_k p_k D_k) = sum_{i, j} p_i p_j A_i x D_j.

Fast/slow (equation 7, algorithm 2; t = server_round - 1, P = 1 / beta a whole number):
coefficients are averaged in rounds with t mod P = 0; in the others atoms and head alone
travel. Personal atoms (section 4.1): each client also trains atoms of its own against the
received coefficients, which are frozen meanwhile.

Deviations, and what the paper leaves open:

- The head is the last linear layer. Hidden layers, biases and buffers are slow, as
  coefficients are; ``fast_set`` chooses.
- Algorithm 2 has clients train coefficients and drop them; its analysis has them drift.
  ``local_coefficients``: ``discard`` is the algorithm, ``freeze`` trains the fast arrays
  only, ``persist`` goes on from the client's own slow arrays up to and including the next
  upload, which replaces them for all.
- The paper charges coefficients to the rounds of their upload. Here the server knows which
  version each client holds, and sends the slow arrays to those that lack the newest.
  Reports have both accounts: ``nominal_...`` is the paper's, ``true_...`` what was sent.
- Evaluation sends the whole model to all and changes no version that a client holds, so
  that measuring does not change the costs of training.
- The personal model has received coefficients and other arrays, personal atoms, and the
  received head or (``personal_head="local"``) one of its own. It starts from the initial
  model, and trains with the client's own loss without the method's corrections of
  gradients (proximal terms, control variates), which belong to the shared model.
- Methods that correct gradients by vectors (control variates, drift, gradients) need
  ``freeze`` where the period is above 1: else a client's vector holds what it trained and
  dropped, and the server's does not. Methods with private models refuse ``freeze``, which
  would freeze these too.
- Personal atoms need a method that scores clients with the shared model.
- ``decomposition_average="products"`` is control C1; ``factors-regauged`` and
  ``products-regauged`` differ by the cross terms alone; see
  :mod:`fedsuite.strategies.decomposition.product_average`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from typing_extensions import override

from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.decomposition import (
    SLOW,
    SLOW_VERSION,
    DecompositionKeys,
    FastSet,
    Orders,
    clients_take_part,
)
from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    ConfigError,
    Exchange,
    FederatedStrategy,
    MethodDeclaration,
    given,
    state,
)
from fedsuite.models.groups import ParameterGroups, factored_groups
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.stage import State
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.decomposition.ledger import Ledger, nominal
from fedsuite.strategies.decomposition.product_average import (
    FactoredLayer,
    ProductMean,
    check_rank,
    cross_term_ratios,
    refactor_model,
    regauge_model,
)

_UNDECOMPOSED = "the model has no decomposed layer: decompose it first"
_CLIENT = ClientNeeds("DecomposedClient", "goes around the method's own client")


class FilterDecomposition(DecompositionKeys, ExchangeLayer):
    """Stands between a strategy and clients that train a decomposed model.

    ``FedAvg(layer=FilterDecomposition(groups=parameter_groups(model)))``. The strategy must
    be one of fedsuite whose clients train one shared model. Clients must be wrapped in
    :class:`~fedsuite.clients.decomposition.filter_decomposition.DecomposedClient`.
    """

    groups: ParameterGroups | None = given(
        default=None, help="parameter_groups(model); None finds all but the head"
    )
    _layers: list[FactoredLayer] = state(default_factory=list)
    _held: dict[int, int] = state(default_factory=dict)
    _whole: Arrays = state(default_factory=dict)
    _record: ArrayRecord = state(default_factory=ArrayRecord)
    _ledger: Ledger = state(default_factory=Ledger)
    _slow_version: int = state(default_factory=int)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fast: frozenset[str] | None = None
        self._slow: Arrays | None = None
        self._products: ProductMean | None = None
        self._strategy: FederatedStrategy | None = None
        if self.groups is not None:
            self._know(self.groups)
            if not self._layers:
                raise ValueError(_UNDECOMPOSED)
        elif self.coefficient_period > 1 and self.fast_set == "atoms+head":
            raise ValueError(
                "fast_set = 'atoms+head': arrays do not show which of them are the head: "
                "give groups = parameter_groups(model) (of fedsuite.models.groups)"
            )
        self._orders = Orders(self)
        self._needs_clients = clients_take_part(self.values())

    @property
    def strategy(self) -> FederatedStrategy:
        """The strategy that the layer belongs to."""
        if self._strategy is None:
            raise RuntimeError("FilterDecomposition belongs to no strategy yet")
        return self._strategy

    @override
    def attach(self, strategy: MethodDeclaration) -> None:
        if self._strategy is not None:
            raise ValueError(
                f"this FilterDecomposition belongs to a {type(self._strategy).__name__}: "
                "make another one for each strategy"
            )
        if not isinstance(strategy, FederatedStrategy):
            raise TypeError(f"{type(strategy).__name__} is no strategy of fedsuite")
        self._strategy = strategy

    @override
    def check(self, strategy: MethodDeclaration) -> None:
        if not isinstance(strategy, FederatedStrategy):
            raise TypeError(f"{type(strategy).__name__} is no strategy of fedsuite")
        name = type(strategy).__name__
        if self._needs_clients and strategy.wire != "message":
            raise ValueError(f"wire = {strategy.wire!r}: legacy clients know no fast set")
        if self.decomposition_average == "factors" and not self.measure_cross_terms:
            return
        moved = strategy.has_server_optimizer or strategy.fedvarp
        if not is_plain_mean(strategy) or moved:
            raise ValueError(
                f"cross terms are defined for the mean by examples: {name} must be FedAvg "
                "or FedProx, with server-learning-rate 1, without server-momentum, "
                "another server-optimizer, fedvarp, another aggregator and "
                "max-client-weight"
            )

    # ---------------------------------------------------------------------------- a round

    @override
    def before_training(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        self._take(arrays)
        self._orders = replace(self._orders, sync=self.is_sync(server_round))
        self._ledger = Ledger()
        self._products = None
        if self.decomposition_average != "factors":
            check_rank(self._layers, self._whole, self.decomposition_average)
        multiplied = self.decomposition_average != "factors" or self.measure_cross_terms
        if self._orders.sync and multiplied:
            self._products = ProductMean(self._layers)
        if self._orders.sync:
            return arrays
        travelling = ArrayRecord()
        for name in self._travelling():
            travelling[name] = arrays[name]
        return travelling

    @override
    def after_training(self, arrays: ArrayRecord | None) -> ArrayRecord | None:
        if arrays is not None and self._products is not None:
            arrays = self._judge(to_arrays(arrays), self._products)
        self._record_costs()
        if arrays is None:
            return None
        merged = ArrayRecord()
        for name, array in self._record.items():
            merged[name] = arrays.get(name, array)
        return merged

    @override
    def before_evaluation(self, arrays: ArrayRecord) -> None:
        self._take(arrays)

    def is_sync(self, server_round: int) -> bool:
        """Return whether coefficients are uploaded in a round, counted from 1."""
        return (server_round - 1) % self.coefficient_period == 0

    @override
    def state(self) -> State:
        return {
            "slow-version": self._slow_version,
            "held-by": list(self._held),
            "held-versions": list(self._held.values()),
        }

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._slow_version = int(state["slow-version"])
        self._held = dict(zip(state["held-by"], state["held-versions"], strict=True))
        # The arrays that come with the next round are of this version.
        self._slow = None

    # ------------------------------------------------------ between strategy and clients

    @override
    def needs(self) -> ClientNeeds | None:
        return _CLIENT if self._needs_clients else None

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        if not self._needs_clients:
            self._ledger.sent(exchange)
            return exchange
        orders = replace(self._orders, slow_version=self._slow_version)
        version = float(self._slow_version)
        bounds = {**exchange.expected.bounds, SLOW_VERSION: (version, version)}
        expected = replace(exchange.expected, bounds=bounds, advice=_CLIENT.advice)
        # Clients that refresh their atoms before they evaluate train by the method's loss.
        refreshes = exchange.message_type != TRAIN and self._orders.keys.refresh_epochs
        told = self._strategy.told(TRAIN) if self._strategy and refreshes else {}
        config = {**told, **exchange.config, **orders.config()}
        exchange = replace(exchange, config=config, expected=expected)
        if exchange.message_type == TRAIN:
            self._check_exchange(exchange)
        if self._fast and self._sends_fast(exchange):
            exchange = self._cut(exchange)
        self._ledger.sent(exchange)
        return exchange

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        if self._products is not None:
            self._products.add(reply.arrays[ARRAYS], reply.num_examples)
        return (reply,)

    @override
    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        self._ledger.received(reply)
        if self._fast and reply.stored_state and self._sends_fast(exchange):
            self._held[reply.client_id] = self._slow_version

    def _sends_fast(self, exchange: Exchange) -> bool:
        return exchange.message_type != EVALUATE and ARRAYS in exchange.shared

    def _check_exchange(self, exchange: Exchange) -> None:
        sent = exchange.shared.get(ARRAYS, {})
        if list(sent) != self._travelling() or ARRAYS not in exchange.expected.arrays:
            raise ConfigError(
                "coefficient-period, personal-atoms and freeze-atoms need a method whose "
                f"clients train one shared model and send it back: "
                f"{type(self.strategy).__name__} is none"
            )
        records = [exchange.shared, *exchange.own.values()]
        others = {n for record in records for n in record if n != ARRAYS}
        if self._fast and others and self.local_coefficients != "freeze":
            # Between uploads these hold nothing for the slow arrays.
            raise ConfigError(
                f"{type(self.strategy).__name__} sends {', '.join(sorted(others))} beside "
                "the model: with coefficient-period > 1 it needs local-coefficients = "
                "'freeze', which trains what travels and nothing else"
            )

    def _cut(self, exchange: Exchange) -> Exchange:
        fast = {n: a for n, a in exchange.shared[ARRAYS].items() if self._is_fast(n)}
        lacking = [k for k in exchange.client_ids if not self._holds(k)]
        own = dict(exchange.own)
        for client_id in lacking:
            own[client_id] = {**own.get(client_id, {}), SLOW: self._slow_arrays()}
        return replace(exchange, shared={**exchange.shared, ARRAYS: fast}, own=own)

    def _know(self, groups: ParameterGroups) -> None:
        """Take note of the model's groups."""
        self._layers = [
            FactoredLayer(atoms, coefficients)
            for atoms, coefficients in zip(groups.atoms, groups.coefficients, strict=True)
        ]
        self._fast = (
            _fast_names(groups, self.fast_set) if self.coefficient_period > 1 else None
        )

    def _holds(self, client_id: int) -> bool:
        return self._held.get(client_id) == self._slow_version

    # --------------------------------------------------------------------------- machinery

    def _is_fast(self, name: str) -> bool:
        return self._fast is None or name in self._fast

    def _travelling(self) -> list[str]:
        """Return the names that travel in this round, in model order."""
        return [n for n in self._whole if self._orders.sync or self._is_fast(n)]

    def _slow_arrays(self) -> Arrays:
        return {n: a for n, a in self._whole.items() if not self._is_fast(n)}

    def _take(self, record: ArrayRecord) -> None:
        """Note the whole model; slow arrays that anyone changed are a new version."""
        if record is self._record:
            return
        self._record, self._whole = record, to_arrays(record)
        if not self._layers:
            self._know(factored_groups(self._whole))
        if not self._layers:
            raise ConfigError(_UNDECOMPOSED)
        slow = self._slow_arrays()
        if self._slow is not None and not _same(slow, self._slow):
            self._slow_version += 1
        self._slow = slow

    def _judge(self, averaged: Arrays, products: ProductMean) -> ArrayRecord:
        """Return the new model, and report the part of cross terms in it."""
        mean = products.result()
        new = averaged
        if self.decomposition_average == "products":
            new = refactor_model(self._layers, mean, averaged)
        elif self.decomposition_average == "products-regauged":
            new = regauge_model(self._layers, mean, averaged)
        elif self.decomposition_average == "factors-regauged":
            filters = {x.coefficients: x.filters(averaged) for x in self._layers}
            new = regauge_model(self._layers, filters, averaged)
        ratios = cross_term_ratios(self._layers, mean, averaged, self._whole, new)
        self.strategy.round_metrics.update(ratios)
        return to_record(new)

    def _record_costs(self) -> None:
        report = self.strategy.reports.get(TRAIN)
        if report is None:
            return
        paper = nominal(self._whole, self._travelling(), report.num_asked)
        self.strategy.round_metrics.update(paper.metrics("nominal"))
        self.strategy.round_metrics.update(self._ledger.metrics("true"))


def is_plain_mean(strategy: FederatedStrategy) -> bool:
    """Return whether a strategy's new model is FedAvg's mean by examples."""
    return (
        isinstance(strategy, FedAvg)
        and type(strategy).aggregate is FedAvg.aggregate
        and type(strategy).weight_of is FedAvg.weight_of
        and strategy.server_learning_rate == 1.0
        and strategy.averaging.streams
    )


def _fast_names(groups: ParameterGroups, fast_set: FastSet) -> frozenset[str]:
    parts: Mapping[str, tuple[str, ...]] = {
        "atoms": groups.atoms,
        "head": groups.head,
        "other": groups.other,
    }
    return frozenset(name for part in fast_set.split("+") for name in parts[part])


def _same(first: Arrays, second: Arrays) -> bool:
    return all(a is second[n] or np.array_equal(a, second[n]) for n, a in first.items())
