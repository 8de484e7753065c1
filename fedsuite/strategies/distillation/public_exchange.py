"""Exchanges on public data: clients send outputs, and the server answers.

A round is a local phase and then ``transfer-steps`` exchanges, each on a public mini-batch
that all clients draw alike from (seed, round, step): clients send their outputs, the server
answers, and each client takes one step. The message of the local phase asks for the first
batch's outputs, and each answer for the next batch's: transfer-steps + 1 exchanges per
round.

No array of the shape of a model leaves a client. A client that misses an exchange sits out
the rest of the round and goes on in the next from where it stopped.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    EVALUATE,
    LOCAL_PHASE,
    LOGITS,
    NO_COMMON_STEP,
    NO_MODEL_BACK,
    NO_WHOLE_MODEL,
    OUTPUTS,
    OWN_RULE,
    TRAIN,
    TRANSFER,
    Arrays,
    ClientReply,
    ConfigValue,
    Exchange,
    Expected,
    FederatedStrategy,
    RecordSpec,
    Release,
    Value,
    key,
    norm,
    part,
    state,
)
from fedsuite.rounds.report import RESERVED

COMMON: Mapping[str, Value] = {
    "optimizer": "adam",
    "learning-rate": 0.001,
    "batch-size": 32,
    "local-steps": 5,
    "client-initialisation": "own",
}
"""Common settings of the comparison in FedAL's paper."""

DEFAULTS: Mapping[str, Value] = {**COMMON, "public-size": 200}
"""The same, with public rows."""

LARGEST_OUTPUT = 1e6
"""Largest magnitude of an output; products with it stay finite."""


LOUDEST = 10.0
"""Medians of the round up to which the length of a client's outputs is believed; networks
of different kinds that trained honestly reached 4."""


@dataclass(frozen=True)
class Feedback:
    """The server's answer to outputs: records for all clients, and for single clients."""

    shared: Mapping[str, Arrays] = field(default_factory=dict)
    own: Mapping[int, Mapping[str, Arrays]] = field(default_factory=dict)


class PublicExchange(FederatedStrategy):
    """Base of the methods that exchange outputs on public data."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "a client sends outputs for public rows in several exchanges, which add up",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = DEFAULTS
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        **NO_MODEL_BACK,
        **NO_WHOLE_MODEL,
    }
    PRIVATE_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "clients keep their models"

    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient exchanges no outputs"

    num_classes: int = part(help="number of classes")
    public_rows: int = part(help="number of rows of the public data")
    transfer_steps: int = key(
        default=5, help="exchanges per round, of one step each", minimum=1, told=TRAIN
    )
    public_batch_size: int = key(
        default=32, help="public samples per exchange; 0 is all", minimum=0, told=TRAIN
    )
    reset_optimizer: bool = key(
        default=False, help="new client optimiser in each round; false keeps it", told=TRAIN
    )
    _local: dict[int, Mapping[str, float]] = state(default_factory=dict)
    _figures: dict[str, list[float]] = state(default_factory=dict)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public_rows < 1 or self.num_classes < 1:
            raise ValueError(
                f"public_rows = {self.public_rows}, num_classes = {self.num_classes}: "
                "expected at least 1 of each"
            )
        self.batch_size = min(self.public_batch_size or self.public_rows, self.public_rows)

    @property
    def settings(self) -> dict[str, ConfigValue]:
        """Settings in each message: keys, the batch's true size, and the seed."""
        told = self.told(TRAIN)
        return {**told, "public-batch-size": self.batch_size, "public-seed": self.seed}

    # ------------------------------------------------------------- for methods to override

    @abstractmethod
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        """Return what clients get for their outputs on a step's batch.

        Parameters
        ----------
        outputs
            Client, in ascending order, to arrays of :meth:`output_spec`, read-only.
        step
            Number of the exchange within the round, from 0.
        """

    def output_spec(self) -> RecordSpec:
        """Return name, shape and dtype of the arrays that clients send of a batch."""
        return {LOGITS: ((self.batch_size, self.num_classes), "float32")}

    def begin_transfer(self) -> None:
        """Prepare the first exchange, after the local phase."""

    # ---------------------------------------------------------------------------- a round

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return self.transfers(self.local_phase(client_ids))

    @override
    def take(self, reply: ClientReply) -> None:
        """Record the client's metrics of the local phase; its outputs have been used."""
        local = {
            key.replace("-", "_"): value
            for key, value in self._local.get(reply.client_id, {}).items()
        }
        kept = {key: value for key, value in local.items() if key not in RESERVED}
        self.annotate(reply.client_id, **kept)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        return None

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids)

    # ----------------------------------------------------------------- for methods to use

    def note(self, **figures: float) -> None:
        """Record figures of an exchange; the round tells their means."""
        for name, value in figures.items():
            values = self._figures.setdefault(name, [])
            values.append(value)
            self.round_metrics[name] = sum(values) / len(values)

    def local_phase(self, client_ids: Sequence[int]) -> Exchange:
        """Return the message of the local phase."""
        return Exchange(
            LOCAL_PHASE, client_ids, config=self.settings, expected=self._expected()
        )

    def transfers(self, asked: Exchange) -> Exchange:
        """Make the exchange ``asked`` and all others but the last, which is returned."""
        replies = list(self.exchange(asked))
        self._local = {reply.client_id: reply.metrics for reply in replies}
        self._figures = {}
        self.begin_transfer()
        for step in range(self.transfer_steps - 1):
            replies = list(self.exchange(self._transfer(replies, step, self._expected())))
        return self._transfer(replies, self.transfer_steps - 1, Expected())

    # --------------------------------------------------------------------------- machinery

    def _expected(self) -> Expected:
        return Expected({OUTPUTS: self.output_spec()}, largest=LARGEST_OUTPUT)

    def _transfer(
        self, replies: Sequence[ClientReply], step: int, expected: Expected
    ) -> Exchange:
        outputs = bounded({reply.client_id: reply.arrays[OUTPUTS] for reply in replies})
        feedback = self.feedback(outputs, step)
        config = {**self.settings, "public-step": step, "num-responders": len(outputs)}
        return Exchange(
            TRANSFER, list(outputs), feedback.shared, feedback.own, config, expected
        )


def bounded(outputs: Mapping[int, Arrays]) -> dict[int, Arrays]:
    """Return outputs in which no client speaks much louder than the others.

    An array longer than :data:`LOUDEST` times the lower median length of its name is scaled
    down to that median. Of fewer than three clients nobody can tell which is odd.
    """
    scaled = {k: dict(arrays) for k, arrays in outputs.items()}
    if len(outputs) < 3:
        return scaled
    for name in next(iter(outputs.values())):
        lengths = {k: norm(held[name]) for k, held in outputs.items()}
        median = sorted(lengths.values())[(len(lengths) - 1) // 2]
        for k, length in lengths.items():
            if median > 0 and length > LOUDEST * median:
                array = outputs[k][name]
                scaled[k][name] = (array * (median / length)).astype(array.dtype)
    return scaled


def mean_outputs(outputs: Mapping[int, Arrays]) -> Arrays:
    """Return the unweighted mean over clients of each array, rounded once."""
    first = next(iter(outputs.values()))
    return {
        name: np.mean(
            [held[name] for held in outputs.values()], axis=0, dtype=np.float64
        ).astype(array.dtype)
        for name, array in first.items()
    }


def output_divergence(outputs: Mapping[int, Arrays]) -> float:
    """Return the Jensen-Shannon divergence of the clients' softmaxes, a mean over samples.

    mean_n KL(p_n || mean p) in nats: 0 where all agree, log N at most.
    """
    logits = np.stack([held[LOGITS] for held in outputs.values()]).astype(np.float64)
    logits -= logits.max(axis=2, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    p = np.exp(log_p)
    mean = p.mean(axis=0, keepdims=True)
    # Where p is 0 so is its term; the mean is 0 only where all p are.
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (log_p - np.log(mean)), 0.0)
    return float(terms.sum(axis=2).mean())
