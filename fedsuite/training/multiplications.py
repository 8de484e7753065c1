"""Count the arithmetic of clients: multiplications of matrices and filters.

Counted where torch carries them out, forward, backward or written by hand, so that a loss
measured without a gradient counts as the third of a gradient evaluation that it is.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedsuite.messages.records import EVALUATE, MULTIPLICATIONS, Reply, Request
from fedsuite.training.app import Answering
from fedsuite.workarounds.torch_modules import TorchDispatchMode

aten = torch.ops.aten


def _matrices(arguments: tuple[Any, ...], result: Any) -> int:
    """Return the multiplications of the last two matrices among the arguments."""
    first, second = [a for a in arguments if isinstance(a, torch.Tensor)][-2:]
    return int(first.numel() * second.shape[-1])


def _convolution(arguments: tuple[Any, ...], result: torch.Tensor) -> int:
    weight = arguments[1]
    return int(result.numel() * math.prod(weight.shape[1:]))


def _convolution_backward(arguments: tuple[Any, ...], result: Any) -> int:
    gradient, weight, wanted = arguments[0], arguments[2], arguments[-1]
    times = sum(map(bool, wanted[:2]))
    return int(gradient.numel() * math.prod(weight.shape[1:]) * times)


def _recurrent(arguments: tuple[Any, ...], result: Any) -> int:
    """Return those of one layer: each of its positions meets both of its matrices."""
    rows, of_input, of_state = arguments[:3]
    return int(math.prod(rows.shape[:2]) * (of_input.numel() + of_state.numel()))


def _recurrent_backward(arguments: tuple[Any, ...], result: Any) -> int:
    return 2 * _recurrent(arguments, result)


COUNTED: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
    aten.mm: _matrices,
    aten.bmm: _matrices,
    aten.addmm: _matrices,
    aten.addmm_: _matrices,
    aten.baddbmm: _matrices,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: _recurrent_backward,
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up multiplications while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Let torch not import its compiler, which takes seconds: nothing is compiled."""
        return False

    def __torch_dispatch__(
        self, operation: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation and count it."""
        result = operation(*args, **(kwargs or {}))
        count = COUNTED.get(operation.overloadpacket)
        if count is not None:
            self.total += count(args, result)
        return result


class CountedClient:
    """A client that tells how many multiplications each answer took, evaluation apart.

    Parameters
    ----------
    client
        The client, with all that is wrapped around it.
    """

    def __init__(self, client: Answering) -> None:
        self._client = client

    def answer(self, request: Request) -> Reply:
        """Answer a request, and count."""
        if request.message_type.partition(".")[0] == EVALUATE:
            return self._client.answer(request)
        with Counter() as counter:
            reply = self._client.answer(request)
        return replace(reply, metrics={**reply.metrics, MULTIPLICATIONS: counter.total})
