"""Requests of a node to a SuperLink, recorded: over HTTP, and gRPC in Flower 1.39."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx

from fedsuite.engines.flower import fleet_is_grpc


class HttpFleet:
    """Flower's own client of the Fleet API, which signs; keeps each signed request."""

    def __init__(self, address: str, authority: Path, key: Any) -> None:
        client = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
        signing = import_module("flwr.supernode.node_auth_http_interceptor")
        signer = signing.NodeAuthHttpInterceptor(key, key.public_key())
        self._authority = str(authority)
        self._last: httpx.Request
        self.client = client.from_server_address(
            address, False, self._authority, interceptors=[signer, self]
        )
        self.client.__enter__()

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Note a signed request."""
        self._last = context.request
        return call_next(context)

    def takes(self, method: str, request: Any) -> bool:
        """Return whether a signed request is answered, and not refused as another's."""
        try:
            getattr(self.client, method)(request)
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 401
            return False
        return True

    def takes_again(self, method: str, request: Any) -> bool:
        """Return whether the last signature holds once more, with this request."""
        last = self._last
        word = re.sub(r"(?<!^)([A-Z])", r"-\1", method).lower()
        headers = {k: v for k, v in last.headers.items() if k != "content-length"}
        url = last.url.copy_with(path=f"/v1/fleet/{word}")
        with httpx.Client(verify=self._authority) as client:
            answer = client.post(url, content=request.SerializeToString(), headers=headers)
        return answer.status_code == 200


class GrpcFleet(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """The same as :class:`HttpFleet`, in the protocol of Flower 1.39."""

    def __init__(self, address: str, authority: Path, key: Any) -> None:
        signing = import_module("flwr.client.grpc_rere_client.node_auth_client_interceptor")
        versions = import_module("flwr.supercore.interceptors")
        self._stub = import_module("flwr.proto.fleet_pb2_grpc").FleetStub
        self._last: list[tuple[str, str | bytes]] = []
        credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        self._bare = grpc.secure_channel(address, credentials)
        signed = grpc.intercept_channel(
            self._bare,
            versions.RuntimeVersionClientInterceptor(component_name="SuperNode"),
            signing.NodeAuthClientInterceptor(key, key.public_key()),
            self,
        )
        self.client = self._stub(signed)

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Note a signed request."""
        self._last = list(details.metadata)
        return continuation(details, request)

    def takes(self, method: str, request: Any) -> bool:
        """As for :class:`HttpFleet`."""
        return self._answers(lambda: getattr(self.client, method)(request))

    def takes_again(self, method: str, request: Any) -> bool:
        """As for :class:`HttpFleet`."""
        call = getattr(self._stub(self._bare), method)
        return self._answers(lambda: call(request, metadata=self._last))

    def _answers(self, call: Callable[[], Any]) -> bool:
        try:
            call()
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
            return False
        return True


Fleet: type[HttpFleet] | type[GrpcFleet] = GrpcFleet if fleet_is_grpc() else HttpFleet
