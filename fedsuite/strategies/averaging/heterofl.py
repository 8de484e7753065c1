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

from collections.abc import Iterator, Mapping, Sequence
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


def mean_of_holders(
    whole: Arrays, replies: Iterator[ClientReply], weights: dict[int, float]
) -> Arrays:
    """Return the mean of each entry over the clients that hold it, the old one of none.

    ``weights`` gets each client's number of examples.
    """
    sums = {name: np.zeros(array.shape) for name, array in whole.items()}
    held = {name: np.zeros(array.shape) for name, array in whole.items()}
    for reply in replies:
        weights[reply.client_id] = reply.num_examples
        for name, array in reply.arrays[ARRAYS].items():
            block = tuple(map(slice, array.shape))
            sums[name][block] += array.astype(np.float64) * reply.num_examples
            held[name][block] += reply.num_examples
    return {
        name: np.where(
            held[name] > 0,
            cast_like(sums[name] / np.where(held[name] > 0, held[name], 1.0), array.dtype),
            array,
        )
        for name, array in whole.items()
    }


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
    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        weights: dict[int, float] = {}
        whole = mean_of_holders(self._widest(arrays), replies, weights)
        self.record_weights(weights)
        if not any(weights.values()):
            return None
        blocks = [leading_block(whole, part) for part in self.networks.initial]
        return self.networks.join(blocks)

    def _widest(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the network with the most parameters."""
        sizes = self.networks.num_parameters
        return self.networks.split(arrays)[sizes.index(max(sizes))]
