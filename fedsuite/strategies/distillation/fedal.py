"""FedAL: clients of different networks learn from each other through a discriminator.

P. Han, X. Shi, J. Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by
Adversarial Learning", arXiv:2311.16584.

Equations used (Algorithm 1), beside those of FedMD-LF. In each exchange the server, with
the logits F_n of all clients on one public batch,

1. takes one step of the discriminator h on the mean of -log h(softmax(F_n / E_d))_n over
   clients and samples (8, 15);
2. sends client n, beside the mean logits, the gradient G_n(x) by F_n(x) of
   log h(softmax(F_n(x) / E_d))_n, under the h just made (21), of each sample alone,
   unscaled.

The client adds the batch mean of <G_n(x), f_n(x)> to its loss: it descends the log
likelihood that the discriminator knows it (18, 19).

Known to hold: ``adversarial`` false is FedMD-LF, bit for bit, and so is a discriminator
whose last layer is 0; with ``less-forgetting`` none beside it, FedMD.

Deviations, and what the paper leaves open. Line 13 of Algorithm 1 has no mean over
clients, equations 8 and 15 do: one step on the mean. The discriminator's optimiser is not
named: Adam, since plain gradient steps of 1e-4 do not train it. "Two fully connected layers
with 32 and 265 neurons" are its hidden layers; the output layer has one unit per client. E
is 2 before the discriminator and 1 in the divergences, as in the paper's experiments; its
equations have one symbol. An absent client has no part in the rest of the round. A client
that came after the run began has no label: it gets the mean alone. The paper puts no weight
before any term: ``adversarial_weight`` multiplies the gradient that clients are sent. Its
default of 10 won on held-out rows; ``preset = "paper"`` brings the paper's 1. See
``simulations/fedal/README.md`` for what it gains and what it costs.
``discriminator_steps`` takes more than the paper's one step per exchange.

Logits and their gradients tell of private data: nothing here is a promise of privacy.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ADVERSARIAL_GRADIENT,
    LOGITS,
    Arrays,
    Between,
    ClientNeeds,
    ConfigValue,
    Value,
    With,
    key,
    state,
)
from fedsuite.strategies.distillation.fedmd import FedMDLF
from fedsuite.strategies.distillation.public_exchange import Feedback

if TYPE_CHECKING:
    from fedsuite.strategies.distillation.discriminator import Discriminator

DiscriminatorOptimizer = Literal["adam", "sgd"]

_DISCRIMINATOR = (With("adversarial", True),)

LABELS = "labels"


class FedAL(FedMDLF):
    """FedMD-LF, and a discriminator on the server that clients learn to deceive."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedALClient", "answers with its outputs on public data"
    )

    PAPER: ClassVar[Mapping[str, Value]] = {"adversarial-weight": 1.0}

    adversarial: bool = key(
        default=True, help="train against a discriminator; false is FedMD-LF"
    )
    adversarial_weight: float = key(
        default=10.0,
        help="weight of the term that deceives the discriminator; 0 is FedMD-LF",
        minimum=0.0,
        needs=_DISCRIMINATOR,
        search=Between(0.1, 100.0),
    )
    discriminator_steps: int = key(
        default=1, help="steps per exchange", minimum=1, needs=_DISCRIMINATOR
    )
    discriminator_learning_rate: float = key(
        default=1e-4, help="0 leaves it as drawn", minimum=0.0, needs=_DISCRIMINATOR
    )
    discriminator_optimizer: DiscriminatorOptimizer = key(
        default="adam", help="optimiser of the discriminator", needs=_DISCRIMINATOR
    )
    discriminator_temperature: float = key(
        default=2.0, help="softmax temperature of inputs", above=0.0, needs=_DISCRIMINATOR
    )
    discriminator_widths: str = key(
        default="32,265",
        help="units of the hidden layers, such as 32,265; empty has none",
        needs=_DISCRIMINATOR,
    )

    _labels: dict[int, int] = state(default_factory=dict)
    _discriminator: "Discriminator | None" = state(default_factory=lambda: None)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self._widths = parse_widths(self.discriminator_widths)

    @property
    def discriminator(self) -> "Discriminator":
        """The discriminator, made for the clients of the federation on first use."""
        # At the top it would cost every command the time that importing torch takes.
        from fedsuite.strategies.distillation.discriminator import Discriminator

        if self._discriminator is None:
            self._labels = self._labels or {
                client_id: label for label, client_id in enumerate(self.members())
            }
            self._discriminator = Discriminator(
                self.num_classes,
                len(self._labels),
                widths=self._widths,
                optimizer=self.discriminator_optimizer,
                learning_rate=self.discriminator_learning_rate,
                temperature=self.discriminator_temperature,
                seed=self.seed,
            )
        return self._discriminator

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        mean = super().feedback(outputs, step)
        if not self.adversarial:
            return mean
        discriminator = self.discriminator
        known = [client_id for client_id in outputs if client_id in self._labels]
        if not known:
            return mean
        logits = np.stack([outputs[client_id][LOGITS] for client_id in known])
        labels = [self._labels[client_id] for client_id in known]
        # The first step alone tells how the last discriminator does on new outputs.
        loss, accuracy = discriminator.step(logits, labels)
        for _ in range(1, self.discriminator_steps):
            discriminator.step(logits, labels)
        chance = float(np.log(len(known)))
        self.note(
            discriminator_loss=loss, discriminator_accuracy=accuracy, log_clients=chance
        )
        weight = np.float32(self.adversarial_weight)
        gradients = weight * discriminator.gradient(logits, labels)
        own = {
            client_id: {ADVERSARIAL_GRADIENT: {LOGITS: gradient}}
            for client_id, gradient in zip(known, gradients, strict=True)
        }
        return Feedback(mean.shared, own)

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        if self._discriminator is None:
            return {}, {}
        by_label = sorted(self._labels, key=self._labels.__getitem__)
        return self._discriminator.state(), {LABELS: by_label}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        by_label = cast(list[int], scalars.get(LABELS, []))
        self._labels = {client_id: label for label, client_id in enumerate(by_label)}
        self._discriminator = None
        if arrays:
            self.discriminator.restore(arrays)


def parse_widths(text: str) -> tuple[int, ...]:
    """Return the widths in ``"32,265"``; ValueError if one is no whole number above 0."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(
            f"discriminator_widths = {text!r}: expected whole numbers above 0, such as "
            "'32,265'"
        )
    return tuple(map(int, parts))
