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

Averaging comes last: clients of one network that were just averaged would have the same
outputs, and nothing to tell each other. A client's Adam goes on from round to round.

``server-kd``, the method's own paper. Clients train the model of their network on their own
data and send it. The server starts a student of each network from its average, and takes
``feddf-server-steps`` steps on public batches towards the mean logits of all received
models (:mod:`fedsuite.strategies.distillation.ensemble`). Teachers are in evaluation mode
and count alike; students are in training mode, so that normalisation layers take statistics
of public inputs. Clients' optimisers are fresh in each round, and nothing stored is used.

Known to hold: ``server-kd`` with 0 steps is FedAvg within each network, with one network
FedAvg, bit for bit; ``client-kd`` where no two clients have the same network is FedMD, bit
for bit; equal clients of one network without normalisation layers have nothing to distil.

Deviations. The server has no labels and cannot validate: the number of steps is fixed, and
the last student is kept; the authors take up to 10,000 steps and stop early. The default of
100 is ours. The authors' code averages parameters uniformly, their paper by size: key
``feddf-average``. In ``client-kd`` a client imitates the mean of the others, as in FedAL's
equation 18; ``distillation-target`` all is its formula for FedDF. A network of which no
client answered stays as it was. A received model whose outputs on the public data are not
finite, or absurd, is left out of ensemble and average.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    Arrays,
    ClientNeeds,
    ClientReply,
    Exchange,
    ServerLogger,
    Value,
    With,
    key,
    part,
    state,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.distillation.fedmd import FedMD, Match, Target
from fedsuite.strategies.distillation.network_averages import Combination, NetworkAverages
from fedsuite.strategies.distillation.public_exchange import DEFAULTS, LARGEST_OUTPUT

if TYPE_CHECKING:
    from torch import Tensor

    from fedsuite.data.public import PublicData
    from fedsuite.strategies.distillation.ensemble import EnsembleDistillation

logger = ServerLogger(__name__)

Mode = Literal["client-kd", "server-kd"]

_CLIENTS_DISTIL = (With("feddf-mode", "client-kd"),)
_SERVER_DISTILS = (With("feddf-mode", "server-kd"),)


class FedDF(NetworkAverages, FedMD):
    """Models go down and up, are averaged within networks, and distilled across them."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDFClient", "answers with its outputs on public data"
    )

    DEFAULTS: ClassVar[dict[str, Value]] = {
        **DEFAULTS,
        "local-steps": 10,
        "client-initialisation": "shared",
    }

    feddf_mode: Mode = key(
        default="client-kd", help="clients distil before averaging, or the server after it"
    )
    feddf_server_steps: int = key(
        default=100, help="per network; 0 only averages", minimum=0, needs=_SERVER_DISTILS
    )
    feddf_server_learning_rate: float = key(
        default=0.001, help="at first; falls by a cosine", above=0.0, needs=_SERVER_DISTILS
    )
    feddf_ensemble: Combination = key(
        default="avg-logits", help="mean over teachers, and loss", needs=_SERVER_DISTILS
    )
    public: "PublicData" = part(help="public inputs for distillation on the server")
    transfer_steps: int = key(default=10, needs=_CLIENTS_DISTIL)
    reset_optimizer: bool = key(default=False, needs=_CLIENTS_DISTIL)
    distillation_target: Target = key(default="others", needs=_CLIENTS_DISTIL)
    distillation_loss: Match = key(default="kl", needs=_CLIENTS_DISTIL)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        if self.feddf_mode == "client-kd":
            return super().train_exchange(arrays, client_ids)
        return replace(
            self.local_phase(client_ids),
            own=self.models_of(arrays, client_ids),
            config={**self.settings, "transfer-steps": 0, "reset-optimizer": True},
            expected_of=self.models_expected(client_ids),
        )

    _teachers: "list[Tensor]" = state(default_factory=list)

    @property
    def _server_distils(self) -> bool:
        return self.feddf_mode == "server-kd" and self.feddf_server_steps > 0

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        super().begin_aggregation(arrays)
        self._teachers = []

    @override
    def take(self, reply: ClientReply) -> None:
        """Take in a model, and its outputs as a teacher where the server distils."""
        if self._server_distils:
            index = self.network_of(reply.client_id)
            outputs = self._distillation.outputs(index, reply.arrays[ARRAYS])
            # "Not all within", since NaN is not beyond.
            if not bool((outputs.abs() <= LARGEST_OUTPUT).all()):
                reason = f"its model's outputs on public data go beyond {LARGEST_OUTPUT:g}"
                self.remarks.refuse(reply.client_id, Kind.WRONG_ARRAYS, reason)
                return
            self._teachers.append(outputs)
        super().take(reply)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        if not self._server_distils:
            return super().aggregate(arrays)
        return self.updated(arrays, self._students(self.averages()))

    def _students(self, averages: dict[int, Arrays]) -> dict[int, Arrays]:
        import torch

        teachers, self._teachers = self._teachers, []
        students, losses = {}, []
        for index, start in averages.items():
            students[index], loss = self._distillation.distil(
                index, start, torch.stack(teachers), self.server_round
            )
            losses.append(loss)
        if losses:
            self.round_metrics["ensemble_loss"] = sum(losses) / len(losses)
        return students

    @property
    def _distillation(self) -> "EnsembleDistillation":
        # At the top it would cost every command the time that importing torch takes.
        from fedsuite.strategies.distillation.ensemble import EnsembleDistillation

        return EnsembleDistillation(
            self.networks.build,
            self.public.features,
            self.feddf_ensemble,
            self.feddf_server_steps,
            self.feddf_server_learning_rate,
            self.batch_size,
            self.seed,
        )
