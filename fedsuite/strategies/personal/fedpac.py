"""FedPAC: features aligned across clients, and heads combined for each client.

J. Xu, X. Tong, S.-L. Huang, "Personalized Federated Learning with Feature Alignment and
Classifier Collaboration", ICLR 2023, arXiv:2306.11867; authors' code JianXu95/FedPAC.

A client trains its head, then the received body with lambda MSE(z, c_y) added to the loss:
z are the features that enter the head, c_y is the label's prototype. With n_ky examples of
class y at client k, mu_ky their mean feature after training, and H_k, V_k from before
training (:mod:`fedsuite.clients.personal.fedpac`), the server makes

    body = sum_k (n_k / n) body_k,        c_y = sum_k n_ky mu_ky / sum_k n_ky,
    P^i_jl = V_j [j = l] + <H_i - H_j, H_i - H_l>,
    a^i = argmin a' P^i a over the simplex,  entries <= 1e-3 zeroed, renormalised,
    head_i = sum_j a^i_j head_j   for each client i of the round.

Prototypes are those of the last round's clients. Clients that did not take part keep their
heads.

A client sends, beside body and head, its class counts, the mean feature of each class
twice, and a variance. Counts tell what it holds, and means of few examples tell much about
them. Noise on uploads is refused, since counts cannot carry it.

Deviations: heads live on the server and travel with each request, so that clients keep no
state. Samples of a class that no client of the last round holds are not aligned, where the
authors' code takes the client's own prototype; the mean is over the whole batch. A client's
counts are scaled down to its granted number of examples. Clients without examples lend no
head. A client whose weights of heads cannot be found keeps its own head.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.method import (
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigError,
    ConfigValue,
    Exchange,
    Release,
    ServerLogger,
    Value,
    Vector,
    grouped,
    joined,
    key,
    spec_of,
    state,
    weighted_mean,
)
from fedsuite.strategies.personal.fedper import FedPer

logger = ServerLogger(__name__)

HEAD = "head"
STATISTICS = "statistics"
PROTOTYPES = "prototypes"
VARIANCE = "feature-variance"

LARGEST_VARIANCE = 1e90
"""Above any variance of float32 features; its products stay in float64's range."""

SMALLEST_WEIGHT = 1e-3


def least_form_on_simplex(matrix: Vector) -> Vector:
    """Return the p of least p' A p on the simplex.

    With A = L' L it is the b >= 0 of least ||L b||^2 + (sum(b) - 1)^2, divided by its sum:
    a problem that scipy's ``nnls`` solves in finitely many steps. The unknowns are scaled
    to a unit diagonal first, so that one huge entry does not hide the others.

    Parameters
    ----------
    matrix
        A, ``[n, n]``, symmetric and finite; positive semi-definite but for rounding, so
        that negative eigenvalues are taken as 0. Any scale.

    Returns
    -------
    array
        ``[n]``, of sum 1 to rounding. Where several are least, one of them.

    Raises
    ------
    RuntimeError
        If the solver does not come to an end.
    """
    from scipy.optimize import nnls

    count = len(matrix)
    roots = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    scale = 1.0 / np.where(roots > 0, roots, 1.0)
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, np.newaxis])
    rows = np.sqrt(np.maximum(values, 0.0))[:, np.newaxis] * vectors.T
    sums = scale / scale.max()
    target = np.append(np.zeros(count), 1.0)
    solution, _ = nnls(np.vstack([rows, sums]), target, maxiter=100 * count)
    point: Vector = solution * sums
    return point / float(point.sum())


def collaboration_matrix(means: Vector, variances: Vector, client: int) -> Vector:
    """Return P of a client, ``[clients, clients]``.

    ``means`` are H_k ``[clients, classes * features]``, ``variances`` V_k >= 0.
    """
    gaps = means[client] - means
    # Without BLAS, whose bits depend on its threads.
    matrix: Vector = np.einsum("jd,ld->jl", gaps, gaps) + np.diag(variances)
    return matrix


def head_weights(matrix: Vector, client: int) -> Vector:
    """Return the weights a of all heads for a client; its own head if none are found."""
    try:
        weights = least_form_on_simplex(matrix)
    except (RuntimeError, np.linalg.LinAlgError):
        logger.warning("no weights of heads were found: a client keeps its own head")
        weights = np.eye(len(matrix))[client]
    kept: Vector = np.where(weights > SMALLEST_WEIGHT, weights, 0.0)
    # With a thousand clients or more all weights may be that small.
    kept = kept if kept.any() else weights
    shares: Vector = kept / kept.sum()
    return shares


def mean_prototypes(
    means: Sequence[NDArray[Any]], counts: Sequence[Vector]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the prototype of each class, and which classes have one.

    Each client has mean features ``[classes, features]`` and counts ``[classes]`` >= 0.
    """
    total = np.sum(counts, axis=0)
    sums = np.zeros(means[0].shape)
    for mean, count in zip(means, counts, strict=True):
        sums += np.multiply(mean, count[:, np.newaxis], dtype=np.float64)
    prototypes = sums / np.where(total > 0, total, 1.0)[:, np.newaxis]
    return prototypes.astype(np.float32), (total > 0).astype(np.uint8)


@dataclass(frozen=True)
class _Upload:
    """What a round keeps of a client's reply."""

    client_id: int
    head: Arrays
    statistics: Arrays
    variance: float
    num_examples: float

    @property
    def counts(self) -> Vector:
        """Examples per class; their sum is at most the granted number of examples."""
        counts = self.statistics["counts"].astype(np.float64)
        granted: Vector = counts * min(1.0, self.num_examples / max(counts.sum(), 1.0))
        return granted


class FedPAC(FedPer):
    """FedPer with aligned features and heads that are combined for each client."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "clients send statistics of their features, and heads are mixed by them",
    )

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedPACClient", "measures its features"
    )

    FIXED: ClassVar[Mapping[str, Value]] = {"upload-noise-multiplier": 0.0}

    alignment: float = key(
        default=1.0,
        help="weight lambda of the alignment of features; 0 is off",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.1, 10.0),
    )
    head_epochs: int = key(
        default=1, help="passes over the data for the head", minimum=0, told=TRAIN
    )
    head_learning_rate: float = key(
        default=0.1,
        help="step size of the head",
        above=0.0,
        told=TRAIN,
        search=Between(0.01, 1.0),
    )
    heads: dict[int, Arrays] = state(default_factory=dict)
    prototypes: Arrays = state(default_factory=dict)
    _uploads: list[_Upload] = state(default_factory=list)

    @override
    def claims(self) -> Collection[str]:
        return (VARIANCE,)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        head = self._head(arrays)
        classes, features = _matrix_shape(head)
        matrix = ((classes, features), "float32")
        # The dtype keeps counts whole and not negative.
        counts = ((classes,), "uint32")
        records = {
            HEAD: spec_of(head),
            STATISTICS: {"prototypes": matrix, "counts": counts, "scaled-means": matrix},
        }
        expected = replace(
            exchange.expected,
            arrays={**exchange.expected.arrays, **records},
            bounds={VARIANCE: (0.0, LARGEST_VARIANCE)},
        )
        shared = dict(exchange.shared)
        if self.prototypes:
            shared[PROTOTYPES] = self.prototypes
        own = self._own(client_ids)
        return replace(exchange, shared=shared, own=own, expected=expected)

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().evaluate_exchange(arrays, client_ids)
        return replace(exchange, own=self._own(client_ids))

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._uploads = []

    @override
    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        if reply.num_examples > 0 and reply.arrays[STATISTICS]["counts"].any():
            self._uploads.append(_upload(reply))

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        uploads, self._uploads = self._uploads, []
        new = super().aggregate(arrays)
        if new is not None and uploads:
            self._combine(uploads)
        return new

    def _combine(self, uploads: Sequence[_Upload]) -> None:
        means, present = mean_prototypes(
            [upload.statistics["prototypes"] for upload in uploads],
            [upload.counts for upload in uploads],
        )
        self.prototypes = {"means": means, "present": present}
        scaled = np.array(
            [u.statistics["scaled-means"].reshape(-1) for u in uploads], dtype=np.float64
        )
        variances = np.array([upload.variance for upload in uploads])
        heads: dict[int, Arrays] = {}
        for index, upload in enumerate(uploads):
            weights = self.weights_for(scaled, variances, index)
            mean = weighted_mean((u.head for u in uploads), weights.tolist())
            heads[upload.client_id] = mean or upload.head
            self.annotate(upload.client_id, own_head_weight=float(weights[index]))
        self.heads |= heads

    def weights_for(self, means: Vector, variances: Vector, client: int) -> Vector:
        """Return the weights of all heads of the round for one of its clients."""
        return head_weights(collaboration_matrix(means, variances, client), client)

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return joined({"prototypes": self.prototypes, **self.heads}), {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        groups = grouped(arrays)
        self.prototypes = groups.pop("prototypes", {})
        self.heads = {int(owner): head for owner, head in groups.items()}

    def _head(self, arrays: Arrays) -> Arrays:
        names = frozenset(self.groups.head)
        return {name: array for name, array in arrays.items() if name in names}

    def _own(self, client_ids: Sequence[int]) -> dict[int, dict[str, Arrays]]:
        return {k: {HEAD: self.heads[k]} for k in client_ids if k in self.heads}


def _upload(reply: ClientReply) -> _Upload:
    return _Upload(
        reply.client_id,
        reply.arrays[HEAD],
        reply.arrays[STATISTICS],
        reply.metrics[VARIANCE],
        reply.num_examples,
    )


def _matrix_shape(head: Arrays) -> tuple[int, int]:
    """Return the numbers of classes and features from the head's one matrix."""
    shapes = [array.shape for array in head.values() if array.ndim == 2]
    if len(shapes) != 1:
        raise ConfigError(
            "fedpac needs a linear layer of its own as the model's head, in each round: "
            "choose another model, or no wrapper that leaves the head out"
        )
    classes, features = shapes[0]
    return classes, features
