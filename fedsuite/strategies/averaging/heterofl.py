"""HeteroFL: small devices train the first channels of the model of large ones.

E. Diao, J. Ding, V. Tarokh, "HeteroFL: Computation and Communication Efficient Federated
Learning for Heterogeneous Clients", ICLR 2021, arXiv:2010.01264.

Equation used: a client whose network is narrower gets, of each array of the widest
network, the block of the first entries along each axis. Each entry of the new model is the
mean over the clients of the round that hold it, weighted by their examples. An entry that
nobody holds stays as it was.

``client-models`` names the networks, one family in several widths, such as
``mlp:hidden-width=16, mlp:hidden-width=64``. The widest is that with most parameters.

Known to hold: equal networks make it FedAvg, bit for bit.

Deviations. What the authors' code (diaoenmao's on GitHub) has and this does not:

- the mean is not weighted;
- a client's rows of the classifier for classes that it lacks stay out of the mean;
- the logits of these classes are 0 in its loss, and where it is scored on its own rows.
  ``logit-calibration`` lowers them, which is something else;
- while a narrow network trains, the outputs of its hidden layers are divided by its share
  of the widest one's width;
- batch normalisation takes each batch's statistics, and one pass over all data after
  training makes the running ones. Here they are averaged as parameters are;
- gradients are clipped to a norm of 1: ``clip-gradient-norm`` does so here.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    NO_COMMON_STEP,
    OWN_RULE,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    ConfigError,
    Exchange,
    Release,
    cast_like,
    state,
)
from fedsuite.strategies.averaging.network_models import NetworkModels


def leading_block(whole: Arrays, part: Arrays) -> Arrays:
    """Return the first entries of ``whole`` along each axis, in the shapes of ``part``.

    Raises
    ------
    ConfigError
        If the two do not have the same arrays, or one of the part is longer along an axis.
    """
    for name in sorted({*whole, *part}):
        shapes = [a[name].shape if name in a else None for a in (part, whole)]
        inner, outer = shapes
        fits = inner is not None and outer is not None and len(inner) == len(outer)
        if not fits or any(map(int.__gt__, inner or (), outer or ())):
            raise ConfigError(
                f"key client-models: array {name} has the shapes {inner} and {outer}: give "
                "one family of networks that differ in width alone"
            )
    return {n: whole[n][tuple(map(slice, array.shape))] for n, array in part.items()}


class MeanOfHolders:
    """The mean of each entry of the widest network over the clients that hold it.

    Parameters
    ----------
    whole
        The widest network's arrays.
    """

    def __init__(self, whole: Arrays) -> None:
        self._whole = whole
        self._sums = {name: np.zeros(array.shape) for name, array in whole.items()}
        self._weights = {name: np.zeros(array.shape) for name, array in whole.items()}

    def add(self, arrays: Arrays, weight: float) -> None:
        """Take in one client's leading block, with a weight >= 0."""
        for name, array in arrays.items():
            block = tuple(map(slice, array.shape))
            self._sums[name][block] += array.astype(np.float64) * weight
            self._weights[name][block] += weight

    def result(self) -> Arrays:
        """Return the means; an entry that nobody holds is the old one."""
        means: Arrays = {}
        for name, array in self._whole.items():
            held = self._weights[name] > 0
            mean = self._sums[name] / np.where(held, self._weights[name], 1.0)
            means[name] = np.where(held, cast_like(mean, array.dtype), array)
        return means


class HeteroFL(NetworkModels):
    """Averages networks of several widths, each entry over the clients that hold it."""

    READING: ClassVar[str] = "without the paper's scaler and masked loss"
    PRIVACY: ClassVar[Release] = Release(
        "refused", "an entry's mean is over the clients whose network holds it"
    )
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {**OWN_RULE, **NO_COMMON_STEP}
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedAvgClient", "trains the network of its own width"
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app has one network for all clients"

    _mean: MeanOfHolders = state(default_factory=lambda: MeanOfHolders({}))
    _weights: dict[int, float] = state(default_factory=dict)

    @override
    def models_of(
        self, arrays: Arrays, client_ids: Sequence[int]
    ) -> dict[int, dict[str, Arrays]]:
        whole, parts = self._widest(arrays), self.networks.initial
        blocks = [leading_block(whole, part) for part in parts]
        return {k: {ARRAYS: blocks[self.network_of(k)]} for k in client_ids}

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(
            TRAIN,
            client_ids,
            own=self.models_of(arrays, client_ids),
            config=self.told(TRAIN),
            expected_of=self.models_expected(client_ids),
        )

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._mean = MeanOfHolders(self._widest(arrays))
        self._weights = {}

    @override
    def take(self, reply: ClientReply) -> None:
        self._weights[reply.client_id] = reply.num_examples
        self._mean.add(reply.arrays[ARRAYS], reply.num_examples)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        whole = self._mean.result()
        self.record_weights(self._weights)
        if not any(self._weights.values()):
            return None
        blocks = [leading_block(whole, part) for part in self.networks.initial]
        return self.networks.join(blocks)

    def _widest(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the network with the most parameters."""
        sizes = self.networks.num_parameters
        return self.networks.split(arrays)[sizes.index(max(sizes))]
