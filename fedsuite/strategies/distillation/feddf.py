"""FedDF: averages within each network, and distillation across them on public data.

T. Lin, L. Kong, S. U. Stich, M. Jaggi, "Ensemble Distillation for Robust Model Fusion in
Federated Learning", NeurIPS 2020, arXiv:2006.07242; and as a baseline in P. Han, X. Shi,
J. Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial
Learning", arXiv:2311.16584. Not black-box: parameters and buffers of clients travel, and
the server holds a model of each network.

Two algorithms go by the name, and a report should say which was run (key ``feddf-mode``).

``client-kd``, our reading of the baseline, whose paper does not say who distils. A round:

1. each client gets the model of its network, and trains it on its own data;
2. clients exchange logits on public batches and imitate the others, as in FedMD
   (:mod:`fedsuite.strategies.distillation.fedmd`), less-forgetting off;
3. clients send their models, and the server averages them within each network g, weighted
   by numbers of examples: theta_g = sum_{n in g} (|D_n| / |D_g|) theta_n.

Averaging comes last: clients of one network that had just been averaged would have the same
outputs, and nothing to tell each other. Before its average a client's Adam goes on from
round to round.

``server-kd``, the method's own paper. Clients train the model of their network on their own
data and send it. The server starts a student of each network from its average, and takes
``feddf-server-steps`` steps on public batches towards the mean of the logits of all models
that it received (:mod:`fedsuite.strategies.distillation.ensemble`). Teachers are the models
as received, in evaluation mode, all counting alike; students are in training mode, so that
normalisation layers take statistics of public inputs. Clients' optimisers are fresh in each
round, and nothing that a client stored is used again.

Known to hold: ``server-kd`` with 0 steps is FedAvg within each network, with one network
FedAvg, bit for bit; ``client-kd`` where no two clients have the same network is FedMD, bit
for bit; equal clients of one network without normalisation layers have nothing to distil.

Deviations. The server has no labels, so no validation: the number of steps is fixed, and
the last student is kept, where the authors take up to 10,000 steps and stop early; the
default of 100 is ours. The authors' code averages parameters uniformly, their paper by
size: key ``feddf-average``. In ``client-kd`` a client imitates the mean of the others, as
in FedAL's equation 18; ``distillation-target`` all is the mean of all, as in its formula
for FedDF. A network of which no client answered stays as it was. A received model whose
outputs on the public data are not finite, or absurd, is left out of both ensemble and
average.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from fedsuite.core.keys import Key, Value, With
from fedsuite.core.logs import ServerLogger
from fedsuite.messages.records import ARRAYS, TRAIN, Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange, Rejection
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.distillation.fedmd import (
    DistillationOptions,
    FedMD,
    LessForgetting,
)
from fedsuite.strategies.distillation.network_averages import (
    AVERAGE,
    Average,
    NetworkAverages,
)
from fedsuite.strategies.distillation.public_exchange import (
    DEFAULTS,
    LARGEST_OUTPUT,
    TRANSFER_STEPS,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fedsuite.data.public import PublicData
    from fedsuite.models.server_networks import ServerNetworks
    from fedsuite.strategies.distillation.ensemble import Combination, EnsembleDistillation

logger = ServerLogger(__name__)

Mode = Literal["client-kd", "server-kd"]

_SERVER_DISTILS = (With("feddf-mode", "server-kd"),)


class FedDF(NetworkAverages, FedMD):
    """Models go down and up, are averaged within networks, and distilled across them.

    Parameters
    ----------
    networks
        The clients' networks.
    public
        The public inputs; what the server distils on.
    feddf_mode
        ``client-kd`` or ``server-kd``; see the module. The latter has no exchange of
        outputs, nor any use for what is about one.
    feddf_average
        ``size`` weighs models by examples, ``uniform`` alike.
    feddf_server_steps
        Steps of the server on each network in ``server-kd``; 0 only averages.
    feddf_server_learning_rate
        Of their first.
    feddf_ensemble
        ``avg-logits``, ``avg-probs`` or ``avg-losses``.
    transfer_steps
        Exchanges after each local phase in ``client-kd``.
    less_forgetting
        As in :class:`~fedsuite.strategies.distillation.fedmd.FedMD`.
    options
        Keywords of :class:`~fedsuite.strategies.distillation.fedmd.FedMD`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDFClient", "answers with its outputs on public data"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *(
            replace(key, needs=(With("feddf-mode", "client-kd"),))
            if key.name in ("reset-optimizer", "distillation-target", "distillation-loss")
            else key
            for key in FedMD.KEYS
            if key.name != "transfer-steps"
        ),
        replace(TRANSFER_STEPS, default=10, needs=(With("feddf-mode", "client-kd"),)),
        AVERAGE,
        Key(
            "feddf-mode",
            "client-kd",
            "who distils: clients, exchanging logits before their models are averaged, or "
            "the server, from the models that it received",
            choices=("client-kd", "server-kd"),
        ),
        Key(
            "feddf-server-steps",
            100,
            "steps on public data that FedDF's server takes with each network's average "
            "under server-kd; 0 only averages",
            minimum=0,
            needs=_SERVER_DISTILS,
        ),
        Key(
            "feddf-server-learning-rate",
            0.001,
            "step size of FedDF's server under server-kd, before it falls by a cosine",
            above=0.0,
            needs=_SERVER_DISTILS,
        ),
        Key(
            "feddf-ensemble",
            "avg-logits",
            "what FedDF's server averages over the received models",
            choices=("avg-logits", "avg-probs", "avg-losses"),
            needs=_SERVER_DISTILS,
        ),
    )
    DEFAULTS: ClassVar[dict[str, Value]] = {
        **DEFAULTS,
        "local-steps": 10,
        "client-initialisation": "shared",
    }
    NEEDS_PUBLIC_INPUTS: ClassVar[bool] = True

    def __init__(
        self,
        *,
        networks: "ServerNetworks",
        public: "PublicData",
        feddf_mode: Mode = "client-kd",
        feddf_average: Average = "size",
        feddf_server_steps: int = 100,
        feddf_server_learning_rate: float = 0.001,
        feddf_ensemble: "Combination" = "avg-logits",
        transfer_steps: int = 10,
        less_forgetting: LessForgetting = "none",
        **options: Unpack[DistillationOptions],
    ) -> None:
        if feddf_server_steps < 0 or not feddf_server_learning_rate > 0:
            raise ValueError(
                f"feddf_server_steps = {feddf_server_steps}, feddf_server_learning_rate = "
                f"{feddf_server_learning_rate}: expected at least 0, and above 0"
            )
        super().__init__(  # type: ignore[call-arg, misc]
            transfer_steps=transfer_steps, less_forgetting=less_forgetting, **options
        )
        self.networks = networks
        self.average = feddf_average
        self.mode = feddf_mode
        self._public = public
        self._server_steps = feddf_server_steps
        self._learning_rate = feddf_server_learning_rate
        self._combination = feddf_ensemble

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Have clients train the model of their network and, where they do, distil."""
        if self.mode == "client-kd":
            return super().train_exchange(arrays, client_ids)
        return replace(
            self.local_phase(client_ids),
            own=self.models_of(arrays, client_ids),
            config={**self.settings, "transfer-steps": 0, "reset-optimizer": True},
            expected_of=self.models_expected(client_ids),
        )

    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        """Average within networks; under ``server-kd`` distil all into each."""
        if self.mode == "client-kd" or self._server_steps == 0:
            return super().aggregate(arrays, replies)
        teachers: list[Tensor] = []
        averages = self.averages(self._taught(self.noted(replies), teachers))
        return self.updated(arrays, self._students(averages, teachers))

    def _taught(
        self, replies: Iterator[ClientReply], teachers: "list[Tensor]"
    ) -> Iterator[ClientReply]:
        """Yield the replies that can be used, noting what their models say."""
        for reply in replies:
            index = self.network_of(reply.client_id)
            found = self._distillation.outputs(index, reply.arrays[ARRAYS])
            # Not "any beyond it", which NaN is not.
            if not bool((found.abs() <= LARGEST_OUTPUT).all()):
                self._refuse(reply.client_id)
                continue
            teachers.append(found)
            yield reply

    def _students(
        self, averages: dict[int, Arrays], teachers: "list[Tensor]"
    ) -> dict[int, Arrays]:
        import torch

        students, losses = {}, []
        for index, start in averages.items():
            students[index], loss = self._distillation.distil(
                index, start, torch.stack(teachers), self.server_round
            )
            losses.append(loss)
        if losses:
            self.round_metrics["ensemble_loss"] = sum(losses) / len(losses)
        return students

    @cached_property
    def _distillation(self) -> "EnsembleDistillation":
        # At the top it would cost every command the time that importing torch takes.
        from fedsuite.strategies.distillation.ensemble import EnsembleDistillation

        return EnsembleDistillation(
            self.networks.build,
            self._public.features,
            self._combination,
            self._server_steps,
            self._learning_rate,
            self.batch_size,
            self.seed,
        )

    def _refuse(self, client_id: int) -> None:
        reason = f"its model's outputs on public data go beyond {LARGEST_OUTPUT:g}"
        logger.warning(
            "round %d: client %d not used: %s", self.server_round, client_id, reason
        )
        rejection = Rejection(self.server_round, client_id, reason)
        self.reports[TRAIN].rejections.append(rejection)
