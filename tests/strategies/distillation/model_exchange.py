"""Small federations that exchange outputs on public data, and models of their networks."""

from collections.abc import Sequence
from typing import Any

import torch

from fedsuite.clients.distillation.feddf import FedDFClient
from fedsuite.data.public import PublicData
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    ARRAYS,
    Arrays,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.models.assignment import Network, Networks
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.strategies.distillation.feddf import FedDF
from tests.helpers import Trace, bits, run
from tests.strategies.distillation.public import (
    CLASSES,
    PUBLIC,
    Build,
    Federation,
    rows,
    small,
    wide,
)

COUNTS = (23, 40, 61)

TURNS: dict[str, Any] = {
    "client_models": "linear, mlp:hidden-width=8",
    "client_model_assignment": "round-robin",
    "partitioner": "power-law",
    "public_size": 40,
    "local_steps": 2,
}
"""Keys of a small experiment on digits in which two networks take turns."""


def networks_of(builds: Sequence[Build], of_client: Sequence[int]) -> ServerNetworks:
    """Return networks of which that of number k is what client k would begin with."""

    def build(index: int) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(index)
            return builds[index]()

    initial = tuple(model_arrays(build(index)) for index in range(len(builds)))
    distinct = tuple(Network(f"network-{index}") for index in range(len(builds)))
    return ServerNetworks(
        Networks(distinct, tuple(of_client)), initial, (1,) * len(builds), build
    )


def strategy_of(kind: type[Any], networks: ServerNetworks, **options: Any) -> Any:
    if options.get("feddf_mode") != "server-kd":
        options = {"transfer_steps": 2} | options
    options = {"public_batch_size": 6} | options
    if kind is FedDF:
        options["public"] = PublicData(PUBLIC)
    return kind(
        networks=networks,
        num_classes=CLASSES,
        public_rows=len(PUBLIC),
        num_clients=len(networks.networks.of_client),
        identity="partition",
        min_available_nodes=1,
        **options,
    )


class Small:
    """A run of clients on networks by number, with data of different size."""

    def __init__(
        self,
        kind: type[Any] = FedDF,
        *,
        builds: Sequence[Build] = (small, wide),
        of_client: Sequence[int] = (0, 1, 0),
        num_rounds: int = 2,
        client_class: type[FedDFClient] = FedDFClient,
        federation: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        own = [builds[index] for index in of_client]
        self.federation = Federation(client_class, own, **federation or {})
        for k in range(len(of_client)):
            client = self.federation._client(None, k)  # type: ignore[arg-type]
            client.train_data = client.test_data = rows(k, COUNTS[k])
        self.networks = networks_of(builds, of_client)
        self.strategy = strategy_of(kind, self.networks, **options)
        initial = self.networks.join(self.networks.initial)
        self.initial = initial
        self.trace: Trace = run(
            self.strategy, self.federation.grid, num_rounds, to_record(initial)
        )

    @property
    def final(self) -> dict[str, bytes]:
        return bits(self.trace.arrays[-1])

    def models_up(self, message_type: str) -> list[dict[str, Arrays]]:
        """Return, by exchange, the models that clients sent, by record."""
        found = self.federation.grid.arrays(message_type, sent=False)
        return [
            {name: a for name, a in records.items() if name.endswith("." + ARRAYS)}
            for records in found
        ]


def sent_models(
    small_run: Small, message_type: str, server_round: int
) -> dict[int, Arrays]:
    """Return by client the models that came in a round."""
    found: dict[int, list[Arrays]] = {}
    for records in small_run.models_up(message_type):
        for name, arrays in records.items():
            client_id = int(name.split(".")[0].removeprefix("client-"))
            found.setdefault(client_id, []).append(arrays)
    return {k: models[server_round - 1] for k, models in sorted(found.items())}
