"""A client that never trains, such as a site that joins later."""

from collections.abc import Collection
from dataclasses import replace

from fedsuite.core.errors import RunError
from fedsuite.messages.records import EVALUATE, Reply, Request
from fedsuite.training.app import Answering


class NewClient:
    """Answers evaluations alone, whatever a server asks.

    Parameters
    ----------
    client
        The client that is evaluated.
    told
        Names of the settings that the method's own clients repeat.
    """

    def __init__(self, client: Answering, told: Collection[str]) -> None:
        self._client = client
        self._told = told

    def answer(self, request: Request) -> Reply:
        """Answer a request to evaluate; RunError for another one."""
        if request.message_type.partition(".")[0] != EVALUATE:
            raise RunError(
                f"client {request.client_id} only evaluates, and was asked for "
                f"{request.message_type}: name it in evaluation-only"
            )
        reply = self._client.answer(request)
        heard = {n: request.config[n] for n in self._told if n in request.config}
        return replace(reply, followed={**reply.followed, **heard})
