"""Networks and tables that the tests of FedProto share."""

from torch import nn

from fedsuite.clients.distillation.fedproto import FedProtoClient, FedProtoPublicClient
from fedsuite.strategies.distillation.fedproto import FedProto, FedProtoPublic
from tests.strategies.distillation.public import WIDTH, strategy_of, tables_of, wide


def deep() -> nn.Module:
    """Another network with nine features, and layers that draw and normalise."""
    return nn.Sequential(
        nn.Linear(WIDTH, 7),
        nn.BatchNorm1d(7),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(7, 9),
        nn.ReLU(),
        nn.Linear(9, 3),
    )


NINE = (wide, deep, wide)

TABLES = (
    ({0: (1, 0), 1: (0, 2)}, (3, 1, 0)),
    ({0: (3, 0)}, (1, 0, 0)),
    ({1: (2, 2), 2: (-1, 1)}, (0, 2, 4)),
)
UNIFORM = [(2, 0), (1, 2), (-1, 1)]
BY_COUNT = [(1.5, 0), (4 / 3, 2), (-1, 1)]


def eight() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))


KINDS = {
    "fedproto": (FedProtoClient, lambda n, **o: tables_of(FedProto, n, **o)),
    "fedproto-public": (
        FedProtoPublicClient,
        lambda n, **o: strategy_of(FedProtoPublic, n, **o),
    ),
}
