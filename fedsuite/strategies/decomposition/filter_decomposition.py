"""Filter decomposition: fast atoms, slow coefficients, personal atoms.

W. Chen, Q. Qiu: Extra Clients at No Extra Cost: Overcome Data Heterogeneity in Federated
Learning with Filter Decomposition, ICML 2025, arXiv:2503.08652.

The base variant, equations 4 to 6, is any strategy over the arrays of a decomposed model
and needs nothing of this file. The product of averages holds latent clients (equation 8):

    (sum_k p_k A_k) x (sum_k p_k D_k) = sum_{i, j} p_i p_j A_i x D_j.

Fast/slow (equation 7, algorithm 2; t = server_round - 1, P = 1 / beta a whole number):
coefficients are averaged in rounds with t mod P = 0, and stay as they are in the others, in
which atoms and head alone travel. Personal atoms (section 4.1): each client also trains
atoms of its own against the received coefficients, which are frozen meanwhile.

Deviations, and what the paper leaves open:

- The head is the last linear layer. What is neither atom nor head (hidden layers, biases,
  buffers) is slow, as the coefficients are; ``fast_set`` says otherwise.
- Algorithm 2 has clients train coefficients that are then thrown away; its analysis has
  them drift. ``local_coefficients`` chooses: ``discard`` is the algorithm, ``freeze``
  trains the fast arrays only, ``persist`` goes on from the client's own slow arrays up to
  and including the next upload, which replaces them for all.
- The paper charges coefficients to the rounds of their upload. A client that was not
  sampled since then lacks them, and must be sent them: the server knows who holds which
  version, and sends them to the others only, in rounds of an upload too. Both accounts are
  recorded each round: ``nominal_...`` is the paper's, ``true_...`` is what was sent.
- Evaluation sends the whole model to all and changes nobody's standing, so that measuring
  more often does not change what training costs.
- The personal model: received coefficients and other arrays, personal atoms, the received
  head or (``personal_head="local"``) one of its own. It starts from the model that all
  started from, and trains with the client's own loss but without the method's corrections
  of gradients (proximal terms, control variates), which belong to the shared model.
- Methods that correct gradients by vectors (control variates, drift, gradients) need
  ``freeze`` where the period is above 1: what a client trains and throws away would be in
  its vector, and not in the server's. Methods with private models need another value than
  ``freeze``, which would freeze those too.
- Personal atoms need a method that scores clients with the shared model.
- ``decomposition_average="products"`` is control C1, and ``factors-regauged`` with
  ``products-regauged`` the pair that differs by the cross terms alone; see
  :mod:`fedsuite.strategies.decomposition.product_average`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.messages.decomposition import (
    SLOW,
    SLOW_VERSION,
    Average,
    FastSet,
    LocalCoefficients,
    Orders,
    PersonalHead,
    clients_take_part,
)
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    TRAIN,
    Arrays,
    ConfigValue,
    to_arrays,
    to_record,
)
from fedsuite.models.groups import ParameterGroups, factored_groups
from fedsuite.rounds.base import FederatedStrategy
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.validation import ClientReply
from fedsuite.rounds.wrapper import StrategyWrapper
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
from fedsuite.strategies.decomposition.rules import refusal

_UNDECOMPOSED = "the model has no decomposed layer: decompose it first"
_CLIENT = ClientNeeds("DecomposedClient", "goes around the method's own client")


class FilterDecomposition(StrategyWrapper):
    """Goes around a strategy that trains a decomposed model.

    Clients must be wrapped too, in
    :class:`~fedsuite.clients.decomposition.filter_decomposition.DecomposedClient`.

    Parameters
    ----------
    strategy
        Any strategy of fedsuite whose clients all train the one shared model.
    groups
        ``parameter_groups(model)`` of the decomposed model. None reads atoms and
        coefficients from the first model, which does not show its head: a fast set with the
        head alone needs the groups.
    coefficient_period
        Rounds from one upload of the coefficients to the next; 1 is every round.
    fast_set
        What travels in each round: ``atoms``, ``atoms+head``, ``atoms+head+other``.
    local_coefficients
        ``discard``, ``freeze`` or ``persist``; see the module.
    freeze_atoms
        Keep the atoms as they are at the start (control C2).
    personal_atoms
        Clients train and are scored with atoms of their own.
    personal_epochs
        Passes to train them; 0 is as much work as for the shared model.
    personal_head
        ``shared`` or ``local``.
    refresh_epochs
        Also score personal models after so many passes that are not kept; 0 does not.
    decomposition_average
        ``factors``, or ``products`` for control C1; ``factors-regauged`` and
        ``products-regauged`` for the pair in balanced factors, which need a period of 1.
    measure_cross_terms
        Record the norm of the cross terms over that of the update.
    """

    def __init__(
        self,
        strategy: FederatedStrategy,
        groups: ParameterGroups | None = None,
        *,
        coefficient_period: int = 1,
        fast_set: FastSet = "atoms+head",
        local_coefficients: LocalCoefficients = "discard",
        freeze_atoms: bool = False,
        personal_atoms: bool = False,
        personal_epochs: int = 0,
        personal_head: PersonalHead = "shared",
        refresh_epochs: int = 0,
        decomposition_average: Average = "factors",
        measure_cross_terms: bool = False,
    ) -> None:
        super().__init__(strategy)
        for name, value, known in (
            ("fast_set", fast_set, FastSet),
            ("local_coefficients", local_coefficients, LocalCoefficients),
            ("personal_head", personal_head, PersonalHead),
            ("decomposition_average", decomposition_average, Average),
        ):
            if value not in get_args(known):
                raise ValueError(f"{name} = {value!r}: expected one of {get_args(known)}")
        if coefficient_period < 1 or personal_epochs < 0 or refresh_epochs < 0:
            raise ValueError(
                f"coefficient_period = {coefficient_period}, personal_epochs = "
                f"{personal_epochs}, refresh_epochs = {refresh_epochs}: expected whole "
                "numbers, the first at least 1"
            )
        self.period = coefficient_period
        self.average = decomposition_average
        self.measures = measure_cross_terms
        self._fast_set = fast_set
        self._layers: list[FactoredLayer] = []
        self._fast: frozenset[str] | None = None
        if groups is not None:
            self._know(groups)
            if not self._layers:
                raise ValueError(_UNDECOMPOSED)
        elif coefficient_period > 1 and fast_set == "atoms+head":
            raise ValueError(
                "fast_set = 'atoms+head': arrays do not show which of them are the head: "
                "give groups = parameter_groups(model) (of fedsuite.models.groups)"
            )
        self._orders = Orders(
            local_coefficients=local_coefficients,
            freeze_atoms=freeze_atoms,
            personal_atoms=personal_atoms,
            personal_epochs=personal_epochs,
            personal_head=personal_head,
            refresh_epochs=refresh_epochs,
        )
        values = {
            "coefficient-period": coefficient_period,
            "fast-set": fast_set,
            "decomposition-average": decomposition_average,
            "measure-cross-terms": measure_cross_terms,
            **self._orders.settings(),
        }
        self._needs_clients = clients_take_part(values)
        self._check_strategy(values)
        self._whole: Arrays = {}
        self._record = ArrayRecord()
        self._slow: Arrays | None = None
        self._slow_version = 0
        self._held: dict[int, int] = {}
        self._ledger = Ledger()
        self._products: ProductMean | None = None
        strategy.layer = _Between(self)

    def refusal(self, strategy: object) -> str:
        """Say what to do with a strategy that is not ours."""
        return (
            f"{super().refusal(strategy)}: the base variant, averaging the factors, needs "
            "no wrapper; run that strategy on the decomposed model as it is"
        )

    def _check_strategy(self, values: Mapping[str, Value]) -> None:
        inner = self.strategy
        name = type(inner).__name__
        if reason := refusal(type(inner), values):
            raise ValueError(reason)
        if self._needs_clients and inner.wire != "message":
            raise ValueError(f"wire = {inner.wire!r}: legacy clients know no fast set")
        if self.average == "factors" and not self.measures:
            return
        extras = inner.extras.momentum.factor > 0 or inner.extras.memory is not None
        if not _is_plain_mean(inner) or extras:
            raise ValueError(
                f"cross terms are defined for the mean by examples: {name} must be FedAvg "
                "or FedProx, with server-learning-rate 1, without server-momentum and "
                "fedvarp"
            )

    # ------------------------------------------------------------------ Flower's contract

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Give the strategy what travels in this round."""
        self._take(arrays)
        self._orders = replace(self._orders, sync=self.is_sync(server_round))
        self._ledger = Ledger()
        self._products = None
        if self.average != "factors":
            check_rank(self._layers, self._whole, self.average)
        if self._orders.sync and (self.average != "factors" or self.measures):
            self._products = ProductMean(self._layers)
        travelling = arrays
        if not self._orders.sync:
            travelling = ArrayRecord()
            for name in self._travelling():
                travelling[name] = arrays[name]
        return self.strategy.configure_train(server_round, travelling, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Put what the strategy made of the fast set into the whole model."""
        record, metrics = self.strategy.aggregate_train(server_round, replies)
        if record is not None and self._products is not None:
            record = self._judge(to_arrays(record), self._products)
        self._record_costs()
        if record is None:
            return None, metrics
        merged = ArrayRecord()
        for name, array in self._record.items():
            merged[name] = record.get(name, array)
        return merged, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Give the strategy the whole model."""
        # In rounds without evaluation too: a checkpoint after an upload must know of it.
        self._take(arrays)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def is_sync(self, server_round: int) -> bool:
        """Return whether coefficients are uploaded in a round, counted from 1."""
        return (server_round - 1) % self.period == 0

    def own_state(self) -> dict[str, ConfigValue]:
        """Return who holds which version of the slow arrays."""
        return {
            "slow-version": self._slow_version,
            "held-by": list(self._held),
            "held-versions": list(self._held.values()),
        }

    def restore_own(self, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`own_state` returned."""
        version, clients, held = (
            _integers(scalars[name])
            for name in ("slow-version", "held-by", "held-versions")
        )
        self._slow_version = version[0]
        self._held = dict(zip(clients, held, strict=True))
        # The arrays that come with the next round are of this version.
        self._slow = None

    # ------------------------------------------------------ between strategy and clients

    def client_needs(self) -> ClientNeeds | None:
        """Return what clients must be; None where any client of the strategy will do."""
        return _CLIENT if self._needs_clients else None

    def outgoing(self, exchange: Exchange) -> Exchange:
        """Cut the model down to the fast set; add the slow one for those who lack it."""
        if not self._needs_clients:
            self._ledger.sent(exchange)
            return exchange
        orders = replace(self._orders, slow_version=self._slow_version)
        expected = replace(
            exchange.expected,
            bounds={
                **exchange.expected.bounds,
                SLOW_VERSION: (float(self._slow_version), float(self._slow_version)),
            },
            advice=_CLIENT.advice,
        )
        exchange = replace(
            exchange, config={**exchange.config, **orders.config()}, expected=expected
        )
        if exchange.message_type == TRAIN:
            self._check_exchange(exchange)
        if self._fast and self._sends_fast(exchange):
            exchange = self._cut(exchange)
        self._ledger.sent(exchange)
        return exchange

    def incoming(self, replies: Iterator[ClientReply]) -> Iterator[ClientReply]:
        """Let replies pass, multiplying factors on the way where that is asked for."""
        for reply in replies:
            if self._products is not None:
                self._products.add(reply.arrays[ARRAYS], reply.num_examples)
            yield reply

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        """Note which version of the slow arrays a client holds now, and what it cost."""
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
        if self._fast and others and self._orders.local_coefficients != "freeze":
            # Between uploads these hold nothing for the slow arrays, and what a client
            # would make of that differs from method to method.
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
        self._fast = _fast_names(groups, self._fast_set) if self.period > 1 else None

    def _holds(self, client_id: int) -> bool:
        return self._held.get(client_id) == self._slow_version

    # --------------------------------------------------------------------------- machinery

    def _is_fast(self, name: str) -> bool:
        return self._fast is None or name in self._fast

    def _travelling(self) -> list[str]:
        """Return the names that the strategy handles in this round, in model order."""
        return [n for n in self._whole if self._orders.sync or self._is_fast(n)]

    def _slow_arrays(self) -> Arrays:
        return {n: a for n, a in self._whole.items() if not self._is_fast(n)}

    def _take(self, record: ArrayRecord) -> None:
        """Note the whole model; slow arrays that changed are a new version.

        Whoever changed them: the strategy in a round of an upload, or a wrapper around
        this one.
        """
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
        """Return the new model, and record how much of it comes from cross terms."""
        mean = products.result()
        new = averaged
        if self.average == "products":
            new = refactor_model(self._layers, mean, averaged)
        elif self.average != "factors":
            if self.average == "factors-regauged":
                filters = {x.coefficients: x.filters(averaged) for x in self._layers}
            else:
                filters = mean
            new = regauge_model(self._layers, filters, averaged)
        ratios = cross_term_ratios(self._layers, mean, averaged, self._whole, new)
        self.round_metrics.update(ratios)
        return to_record(new)

    def _record_costs(self) -> None:
        report = self.reports.get(TRAIN)
        if report is None:
            return
        paper = nominal(self._whole, self._travelling(), report.num_asked)
        self.round_metrics.update(paper.metrics("nominal"))
        self.round_metrics.update(self._ledger.metrics("true"))


class _Between(ExchangeLayer):
    """Shows a wrapper what passes."""

    def __init__(self, wrapper: FilterDecomposition) -> None:
        self._wrapper = wrapper

    def needs(self) -> ClientNeeds | None:
        return self._wrapper.client_needs()

    def outgoing(self, exchange: Exchange) -> Exchange:
        return self._wrapper.outgoing(exchange)

    def incoming(self, replies: Iterator[ClientReply]) -> Iterator[ClientReply]:
        return self._wrapper.incoming(replies)

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        self._wrapper.accepted(exchange, reply)


def _integers(value: ConfigValue) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]


def _is_plain_mean(strategy: FederatedStrategy) -> bool:
    """Return whether a strategy's new model is the mean by examples, FedAvg's own."""
    return (
        isinstance(strategy, FedAvg)
        and type(strategy).aggregate is FedAvg.aggregate
        and strategy.server_learning_rate == 1.0
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
