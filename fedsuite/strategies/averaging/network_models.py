"""Strategies that send each client the model of its own network, and get it back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    Arrays,
    ConfigError,
    Exchange,
    Expected,
    FederatedStrategy,
    part,
    spec_of,
)

if TYPE_CHECKING:
    from fedsuite.models.server_networks import ServerNetworks


class NetworkModels(FederatedStrategy):
    """Base whose global arrays are those of all networks, see ``ServerNetworks``."""

    networks: "ServerNetworks" = part(help="the clients' networks")

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids, own=self.models_of(arrays, client_ids))

    def network_of(self, client_id: int) -> int:
        """Return the index of a client's network; raise ConfigError if it has none."""
        networks = self.networks.networks.of_client
        if client_id >= len(networks):
            raise ConfigError(
                f"{type(self).__name__} knows the networks of clients 0 to "
                f"{len(networks) - 1}, and client {client_id} is none of them: give "
                "identity='partition', with clients that are "
                f"fedsuite.clients.{self.NEEDS_OF_CLIENT.client}"
            )
        return networks[client_id]

    def models_of(
        self, arrays: Arrays, client_ids: Sequence[int]
    ) -> dict[int, dict[str, Arrays]]:
        """Return for each client the record with the model of its network."""
        parts = self.networks.split(arrays)
        return {k: {ARRAYS: parts[self.network_of(k)]} for k in client_ids}

    def models_expected(self, client_ids: Sequence[int]) -> dict[int, Expected]:
        """Return for each client the reply that holds a model of its network."""
        specs = [spec_of(initial) for initial in self.networks.initial]
        return {k: Expected({ARRAYS: specs[self.network_of(k)]}) for k in client_ids}
