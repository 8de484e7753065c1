"""The mean of the products of LoRA's adapters, of clients with ranks of their own.

A client's adapter adds c B_k A_k x to a layer, with A_k [r_k, in], B_k [out, r_k] and one
factor c for all. The mean of the B_k times the mean of the A_k is not the mean of the
products. FLoRA (Z. Wang et al., NeurIPS 2024, arXiv:2409.05976) stacks the adapters of all
clients, whose product is that mean,

    [p_1 B_1, ..., p_K B_K] [A_1; ...; A_K] = sum_k p_k B_k A_k,

whatever their ranks. Here the mean X of the products is written as an adapter of rank r
again, by its singular value decomposition X = U S V':

    B = U S / a,    A = a V',    a = 1 / sqrt(3),

the nearest one of that rank, exact where r is as large as X's rank. The rows of A are as
long as when they are drawn, so that a direction that nobody has used yet can be learnt.

Its directions fall in weight, and a client of rank r_k < r is sent the first r_k of them.
The others stay in the product of its reply as they are: its change counts, and what it was
not sent is not forgotten.

Deviations from FLoRA: there each client merges the stack into the layer's weight and draws
a new adapter in each round. The stack is as large as all adapters together, and a client
that sits out a round lacks it. Here clients go on from the mean, messages hold no more than
the client's rank, and whoever sits out lacks nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.method import (
    ARRAYS,
    TRAIN,
    Arrays,
    ClientReply,
    ConfigError,
    Exchange,
    FederatedStrategy,
    MethodDeclaration,
)
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.validation import spec_of
from fedsuite.strategies.decomposition.filter_decomposition import is_plain_mean

A, B = "lora_a", "lora_b"

Matrix = NDArray[np.float64]
Pairs = Sequence[tuple[str, str]]


def pairs_of(names: Iterable[str]) -> Pairs:
    """Return the names of A and B of each adapter whose both travel."""
    known = list(names)
    stems = [name.removesuffix(A) for name in known if name.endswith(A)]
    return [(stem + A, stem + B) for stem in stems if stem + B in known]


def products(arrays: Mapping[str, NDArray[Any]], pairs: Pairs) -> dict[str, Matrix]:
    """Return B A of each adapter, by the name of its A, in float64."""
    return {
        a: arrays[b].astype(np.float64) @ arrays[a].astype(np.float64) for a, b in pairs
    }


def cut(arrays: Arrays, pairs: Pairs, rank: int) -> Arrays:
    """Return a model whose adapters have their first directions alone."""
    short = dict(arrays)
    for a, b in pairs:
        short[a] = np.ascontiguousarray(arrays[a][:rank])
        short[b] = np.ascontiguousarray(arrays[b][:, :rank])
    return short


def completed(arrays: Arrays, pairs: Pairs, whole: Arrays) -> Arrays:
    """Return a client's model with the directions of ``whole`` that it was not sent."""
    full = dict(arrays)
    for a, b in pairs:
        rank = len(arrays[a])
        full[a] = np.concatenate([arrays[a], whole[a][rank:]])
        full[b] = np.concatenate([arrays[b], whole[b][:, rank:]], axis=1)
    return full


def adapter_of(product: Matrix, rank: int) -> tuple[Matrix, Matrix]:
    """Return the A [rank, in] and B [out, rank] whose B A is nearest to a product.

    The directions fall in weight, and each row of A has the length 1 / sqrt(3).
    """
    left, values, right = np.linalg.svd(product, full_matrices=False)
    length = 3**-0.5
    return length * right[:rank], left[:, :rank] * values[:rank] / length


class LoraAverage(ExchangeLayer):
    """Stands between a strategy and clients that train LoRA's adapters.

    Parameters
    ----------
    ranks
        Client to its own rank, where that is below the others'.
    """

    def __init__(self, ranks: Mapping[int, int]) -> None:
        self._ranks = ranks
        self._whole: Arrays = {}
        self._pairs: Pairs = ()
        self._sums: dict[str, Matrix] = {}
        self._weight = 0.0
        self._strategy: FederatedStrategy | None = None

    @override
    def attach(self, strategy: MethodDeclaration) -> None:
        assert isinstance(strategy, FederatedStrategy)
        self._strategy = strategy

    @override
    def check(self, strategy: MethodDeclaration) -> None:
        assert isinstance(strategy, FederatedStrategy)
        if strategy.wire != "message":
            raise ValueError(f"wire = {strategy.wire!r}: legacy clients know no adapters")
        moved = strategy.has_server_optimizer or strategy.fedvarp
        if not is_plain_mean(strategy) or moved:
            raise ValueError(
                "lora-average = 'products' is defined for the mean by examples: take "
                "fedavg or fedprox, with server-learning-rate 1, without server-momentum, "
                "another server-optimizer, fedvarp, another aggregator and "
                "max-client-weight"
            )

    @override
    def values(self) -> dict[str, Any]:
        return {"lora-average": "products"}

    @override
    def before_training(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        self._whole = to_arrays(arrays)
        self._pairs = pairs_of(self._whole)
        self._sums, self._weight = {}, 0.0
        if not self._pairs:
            raise ConfigError(
                "lora-average = 'products': no adapter whose A and B both travel: name "
                "both in travels, or leave it out; with A frozen the plain mean is exact"
            )
        return arrays

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        model = exchange.shared.get(ARRAYS)
        if exchange.message_type != TRAIN or model is None:
            return exchange
        short = {k: r for k, r in self._ranks.items() if k in exchange.client_ids}
        if not short:
            return exchange
        own, expected_of = dict(exchange.own), dict(exchange.expected_of)
        for client_id in exchange.client_ids:
            sent = model
            if client_id in short:
                sent = cut(model, self._pairs, short[client_id])
                back = {**exchange.expected.arrays, ARRAYS: spec_of(sent)}
                expected_of[client_id] = replace(exchange.expected, arrays=back)
            own[client_id] = {**own.get(client_id, {}), ARRAYS: sent}
        shared = {name: a for name, a in exchange.shared.items() if name != ARRAYS}
        return replace(exchange, shared=shared, own=own, expected_of=expected_of)

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        arrays = completed(reply.arrays[ARRAYS], self._pairs, self._whole)
        self._weight += reply.num_examples
        for name, product in products(arrays, self._pairs).items():
            known = self._sums.get(name, 0.0)
            self._sums[name] = known + reply.num_examples * product
        return (replace(reply, arrays={**reply.arrays, ARRAYS: arrays}),)

    @override
    def after_training(self, arrays: ArrayRecord | None) -> ArrayRecord | None:
        if arrays is None or not self._weight:
            return arrays
        new = to_arrays(arrays)
        mean = {name: total / self._weight for name, total in self._sums.items()}
        of_factors = products(new, self._pairs)
        for a, b in self._pairs:
            factors = adapter_of(mean[a], len(new[a]))
            new[a], new[b] = (np.ascontiguousarray(f, dtype=new[a].dtype) for f in factors)
        if self._strategy is not None:
            of_rank = products(new, self._pairs)
            self._strategy.round_metrics |= {
                "lora_error_of_factors": relative_error(of_factors, mean),
                "lora_error_of_rank": relative_error(of_rank, mean),
            }
        return to_record(new)


def relative_error(products: Mapping[str, Matrix], exact: Mapping[str, Matrix]) -> float:
    """Return how far products lie from the exact ones, over the exact ones' length."""
    off = sum(float(np.square(products[n] - x).sum()) for n, x in exact.items())
    whole = sum(float(np.square(x).sum()) for x in exact.values())
    return float((off / whole) ** 0.5) if whole else 0.0
