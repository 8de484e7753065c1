"""Anchored averaging, the client's side."""

from fedsuite.client import ARRAYS, FederatedClient, Reply, Request, Told


class AnchoredClient(FederatedClient):
    """Sends a point between the model that it received and the one that it trained."""

    anchored_way = Told(float)

    def on_train(self, request: Request) -> Reply:
        """Train, and go back a part of the way."""
        reply = super().on_train(request)
        for name, trained in reply.arrays[ARRAYS].items():
            received = request.arrays[ARRAYS][name]
            point = received + self.anchored_way * (trained - received)
            reply.arrays[ARRAYS][name] = point.astype(trained.dtype)
        return reply
