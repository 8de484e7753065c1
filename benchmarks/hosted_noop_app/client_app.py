"""Clients that learn nothing."""

from flwr.app import Context

from fedsuite.messages.records import ARRAYS, EVALUATE, NUM_EXAMPLES, TRAIN, Reply, Request
from fedsuite.training.app import make_client_app


class Idle:
    """Answers the model plus 1."""

    def answer(self, request: Request) -> Reply:
        """Answer a request."""
        metrics = {NUM_EXAMPLES: 1, "loss": 0.0}
        if request.message_type == EVALUATE:
            return Reply(metrics=metrics)
        received = request.arrays[ARRAYS]
        return Reply({ARRAYS: {name: a + 1 for name, a in received.items()}}, metrics)


def idle(context: Context, client_id: int) -> Idle:
    """Return a client."""
    return Idle()


app = make_client_app(idle, [TRAIN, EVALUATE])
