"""LG-FedAvg: local lower layers, shared upper ones.

P. P. Liang, T. Liu, L. Ziyin, R. Salakhutdinov, L.-P. Morency, "Think Locally, Act
Globally: Federated Learning with Local and Global Representations", arXiv:2001.01523.

Client k trains all layers jointly; the last ``shared-layers`` of them are averaged, plainly
over the clients of the round, and the others stay with the client. The default of 1 is that
of the authors' ``num_layers_keep``.

Deviations: training starts from the initial model, not from a checkpoint of FedAvg. The
current model is scored; the authors' code scores each client's best on test data so far.
Layers count from the input up, as in the paper; the authors' network for CIFAR-10 lists its
convolutions last and shares these. Clients without examples do not count.
"""

from typing import ClassVar

from typing_extensions import override

from fedsuite.method import ClientReply, OneOf, Release, Rule, Summed, alike, key
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.personal.partial import PartialAverage


class LGFedAvg(PartialAverage):
    """Averages the upper layers, each client counting alike."""

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "only the upper layers leave a client; the guarantee is for what others see",
    )

    SUMS: ClassVar[Summed | None] = Summed("clients")

    RULES: ClassVar[tuple[Rule, ...]] = alike()

    shared_layers: int = key(
        default=1, help="from the top; 0 is Standalone", minimum=0, search=OneOf(1, 2)
    )

    @override
    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        count = len(groups.layers)
        if self.shared_layers > count:
            raise ValueError(
                f"shared_layers = {self.shared_layers}: expected 0 to {count}, the number "
                "of the model's layers"
            )
        upper = groups.layers[count - self.shared_layers :]
        return frozenset(name for layer in upper for name in layer)

    @override
    def weight_of(self, reply: ClientReply) -> float:
        return float(reply.num_examples > 0)
