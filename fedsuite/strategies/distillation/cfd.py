"""CFD: a network on the server learns from all clients, and they from it.

F. Sattler, A. Marban, R. Rischke, W. Samek, "Communication-Efficient Federated
Distillation", arXiv:2012.00632; in the form in which P. Han, X. Shi, J. Huang, "FedAL:
Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning",
arXiv:2311.16584, compares with it. That form is MHAT's as well: L. Hu et al., "MHAT: An
efficient model-heterogenous aggregation training scheme for federated learning",
Information Sciences 560, 2021.

Equations. With F_n client n's logits, F their mean over clients and f_s the server's on
one public batch, KL(a, b) = sum a log(a / b), and the mean over the batch throughout:

1. the server takes ``cfd-server-steps`` Adam steps on KL(softmax(F), softmax(f_s)), or
   with ``cfd-target`` prob-mean on KL(mean_n softmax(F_n), softmax(f_s));
2. it sends all clients the same logits f_s, as they are after the step (``cfd-emit``);
3. client n takes one step on KL(softmax(f_s), softmax(f_n)).

The local phase is plain training. With ``cfd-bits`` b above 0, as in CFD's own paper,
clients send not logits but the nearest point of the grid of multiples of 1 / (2^b - 1).

Known to hold: a server whose network reaches its target is FedMD with the mean over all
clients; with clients and server all equal every loss is 0.

Deviations. CFD's own paper exchanges once per round on all public data, weighs clients by
examples, quantises what is sent down too, and codes the change since the last round. Here
an exchange is a mini-batch, as in FedAL's comparison, clients weigh alike, and the answer
is float32. Quantised rows travel as float32 too: bytes in reports are not the paper's.
``coded_bits_up`` tells the paper's per round: what an ideal coder needs for each client's
codes, given its last code of the same row
(:class:`DeltaLedger`). A real coder needs a little more, and
the table of frequencies. The papers leave the server's network open: here the clients'
largest, from the initial parameters that they share. It stays on the CPU. Its steps are
work that other methods do not have. A client alone in an exchange still learns from the
server.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.data.public_batches import public_batch
from fedsuite.messages.quantisation import LARGEST_BITS
from fedsuite.method import (
    LOGITS,
    PROBABILITIES,
    SERVER_OUTPUTS,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ConfigError,
    ConfigValue,
    RecordSpec,
    Rule,
    RunError,
    Unless,
    key,
    part,
    state,
)
from fedsuite.models import build_model
from fedsuite.models.assignment import Network, parse_networks
from fedsuite.strategies.distillation.public_exchange import (
    Feedback,
    PublicExchange,
    mean_outputs,
    output_divergence,
)

if TYPE_CHECKING:
    from torch import nn

    from fedsuite.data.public import PublicData
    from fedsuite.models.server_networks import ServerNetworks
    from fedsuite.strategies.distillation.server_student import ServerStudent

Target = Literal["logit-mean", "prob-mean"]
Emit = Literal["after", "before"]

_UNTOLD = -1.0
"""Stands for a code not sent yet."""

_CODES = "codes/"


def delta_code_bits(codes: NDArray[Any], previous: NDArray[Any] | None = None) -> float:
    """Return the bits of an ideal coder of a round's codes, given the last round's codes.

    The number is rows * H(code | last code of the row), with the frequencies found; in a
    first round, rows * H(code).

    Parameters
    ----------
    codes, previous
        Rows of :func:`quantise`, ``[rows, classes]``, of the same samples.

    Raises
    ------
    ValueError
        If the numbers of rows differ.
    """
    if previous is None:
        return _entropy_bits(codes)
    if len(codes) != len(previous):
        raise ValueError(
            f"codes of {len(codes)} samples, and of {len(previous)} before: expected the "
            "same samples"
        )
    return _entropy_bits(np.hstack([previous, codes])) - _entropy_bits(previous)


def _entropy_bits(rows: NDArray[Any]) -> float:
    """Return the number of rows times the entropy of the rows' distribution."""
    if not len(rows):
        return 0.0
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return float((counts * np.log2(len(rows) / counts)).sum())


class DeltaLedger:
    """Ledger of an ideal coder's bits for the clients' codes, given each row's last code.

    A client's codes of a round are coded together, with the frequencies found. Rows with an
    earlier code cost H(code | last code). The other rows cost H(code).

    Parameters
    ----------
    num_rows
        Number of public rows.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._last: dict[int, NDArray[np.float32]] = {}
        self._uploads: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {}

    def begin_round(self) -> None:
        """Count from 0 again; the last codes stay known."""
        self._uploads = {}

    def add(self, client_id: int, rows: NDArray[Any], codes: NDArray[Any]) -> None:
        """Add a client's codes of some public rows, each row at most once.

        Parameters
        ----------
        client_id
            Client that sends the codes.
        rows
            Numbers of the rows.
        codes
            Codes of :func:`quantise`, ``[rows, classes]``.
        """
        fresh = np.full((self._num_rows, codes.shape[1]), _UNTOLD, np.float32)
        last = self._last.setdefault(client_id, fresh)
        self._uploads.setdefault(client_id, []).append((last[rows], codes))
        last[rows] = codes

    def bits(self) -> float:
        """Return the bits of all clients in the round so far."""
        total = 0.0
        for uploads in self._uploads.values():
            before, codes = (np.concatenate(parts) for parts in zip(*uploads, strict=True))
            known = before[:, 0] != _UNTOLD
            total += delta_code_bits(codes[known], before[known])
            total += delta_code_bits(codes[~known])
        return total

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the last codes of each client."""
        return {str(client_id): codes for client_id, codes in self._last.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the last codes of each client."""
        self._last = {int(name): codes.copy() for name, codes in state.items()}


class CFD(PublicExchange):
    """A network on the server stands between the clients."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "CFDClient", "answers with its outputs on public data"
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("cfd-bits", "cfd-target"),
            (Unless("cfd-bits", 0), Unless("cfd-target", "prob-mean")),
            "what is rounded are probabilities, which have no mean of logits",
            "set {cfd-target} = 'prob-mean'",
        ),
    )

    cfd_server_model: str = key(
        default="", help="entry of client-models; empty is the clients' largest"
    )
    cfd_target: Target = key(
        default="logit-mean", help="softmax of the mean logits, or mean of the softmaxes"
    )
    cfd_emit: Emit = key(
        default="after", help="outputs sent: those after the server's step, or before"
    )
    cfd_server_steps: int = key(
        default=1, help="steps per exchange; 0 leaves the network as drawn", minimum=0
    )
    cfd_learning_rate: float = key(
        default=0.001, help="step of the server", above=0.0, search=Between(0.0001, 0.01)
    )
    cfd_bits: int = key(
        default=0,
        help="bits of a client's probability; 1 is one-hot, 0 sends logits",
        minimum=0,
        maximum=LARGEST_BITS,
        told=TRAIN,
    )
    networks: "ServerNetworks" = part(help="the clients' networks")
    public: "PublicData" = part(help="public data for the server's network")
    _student: "ServerStudent | None" = state(default_factory=lambda: None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.public) != self.public_rows:
            raise ValueError(
                f"public_rows = {self.public_rows}: public has {len(self.public)} rows"
            )
        self._server_network = _parse(self.cfd_server_model)
        self._coded = DeltaLedger(self.public_rows)

    @property
    def student(self) -> "ServerStudent":
        """The server's network with its optimiser, made on first use."""
        # At the top it would cost every command the time that importing torch takes.
        from fedsuite.models.one_row import one_row_failure
        from fedsuite.strategies.distillation.server_student import ServerStudent

        if self._student is None:
            network = self._build()
            if self.batch_size == 1 and (
                reason := one_row_failure(network, self.public.features)
            ):
                raise RunError(
                    "public-batch-size = 1: the server's network cannot train on one row "
                    f"({reason}): give 2 or more, or choose another cfd-server-model"
                )
            self._student = ServerStudent(network, self.cfd_learning_rate, self.seed)
        return self._student

    @override
    def output_spec(self) -> RecordSpec:
        if not self.cfd_bits:
            return super().output_spec()
        return {PROBABILITIES: ((self.batch_size, self.num_classes), "float32")}

    @override
    def begin_transfer(self) -> None:
        self._coded.begin_round()

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        rows = public_batch(
            self.public_rows, self.batch_size, self.seed, self.server_round, step
        )
        inputs = self.public.features[rows]
        target = self._target(outputs)
        when = self.server_round, step
        emitted = self.student.logits(inputs, *when)
        for _ in range(self.cfd_server_steps):
            self.note(server_loss=self.student.step(inputs, target, *when))
        if self.cfd_emit == "after":
            emitted = self.student.logits(inputs, *when)
        if not self.cfd_bits:
            self.note(output_divergence=output_divergence(outputs))
        else:
            for client_id, arrays in outputs.items():
                self._coded.add(client_id, rows.numpy(), arrays[PROBABILITIES])
            self.round_metrics["coded_bits_up"] = self._coded.bits()
        return Feedback({SERVER_OUTPUTS: {LOGITS: emitted}})

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        codes = {f"{_CODES}{name}": array for name, array in self._coded.state().items()}
        return {**(self._student.state() if self._student else {}), **codes}, {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self._student = None
        codes = {name: array for name, array in arrays.items() if name.startswith(_CODES)}
        self._coded.restore({name[len(_CODES) :]: a for name, a in codes.items()})
        if student := {name: a for name, a in arrays.items() if name not in codes}:
            self.student.restore(student)

    def _target(self, outputs: Mapping[int, Arrays]) -> NDArray[np.float64]:
        """Return the probabilities that the server's network is to learn."""
        if self.cfd_target == "logit-mean":
            return softmax(mean_outputs(outputs)[LOGITS])
        held = [
            _rows(arrays[PROBABILITIES]) if self.cfd_bits else softmax(arrays[LOGITS])
            for arrays in outputs.values()
        ]
        mean: NDArray[np.float64] = np.mean(held, axis=0)
        return mean

    def _build(self) -> "nn.Module":
        network = self._server_network
        if network is not None:
            shape = tuple(self.public.features.shape[1:])
            return build_model(
                network.name,
                shape,
                self.num_classes,
                self.seed,
                client_id=0,
                words=not self.public.features.is_floating_point(),
                **network.options,
            )
        networks, sizes = self.networks.networks, self.networks.num_parameters
        held = [index for index in range(len(sizes)) if networks.clients_of(index)]
        return self.networks.build(max(held, key=sizes.__getitem__))


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of each row."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return shares


def _rows(received: NDArray[Any]) -> NDArray[np.float64]:
    """Return received rows as distributions; noise may have made them something else."""
    rows = np.clip(received.astype(np.float64), 0.0, 1.0)
    total = rows.sum(axis=1, keepdims=True)
    uniform = np.full_like(rows, 1 / rows.shape[1])
    shares: NDArray[np.float64] = np.divide(rows, total, out=uniform, where=total > 0)
    return shares


def _parse(text: str) -> Network | None:
    if not text.strip():
        return None
    shares = parse_networks(text, "cfd-server-model")
    if len(shares) != 1:
        raise ConfigError(f"key cfd-server-model = {text!r}: expected one network")
    return shares[0]
