"""Ditto: a personal model on each client, held near the global one.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv:2012.04221.

Equations used (Algorithm 1): the global model w is FedAvg's. A client of the round also
takes s steps v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w_t)) from the personal model
that it keeps, w_t being the model it received; v_k starts as w_0.

Known to hold: w is FedAvg's, bit for bit, whatever lambda; lambda = 0 trains v_k locally.

Deviations. w is averaged by numbers of examples, as FedAvg does; the authors' code samples
clients by size and takes the plain mean. Personal steps come after the global ones, on
mini-batches of their own; the authors' code takes both kinds in turns on the same
mini-batch. Clients are scored with v_k; one that was never sampled still has v_k = w_0 and
is scored with that, as in the authors' code. One lambda for all, not chosen by each client.
v_k depends on no other client's reply: it also moves in a round that misses its quorum.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.rounds.declaration import ClientNeeds, ScoredModel
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.averaging.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg whose clients train and keep a personal model beside the global one.

    Parameters
    ----------
    ditto_lambda
        Pull of the personal model towards the global one; 0 is training alone. The default
        is that of the authors' scripts; keep it well below 2 / learning rate.
    ditto_local_epochs, ditto_local_steps
        Work on the personal model in a round, epochs or mini-batches; both 0 is as much as
        on the global one.
    ditto_learning_rate
        Step size of the personal model, which decays as that of the global one; 0 is the
        same as that.
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "DittoClient", "keeps a personal model", stores=True
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *FedAvg.KEYS,
        Key(
            "ditto-lambda",
            1.0,
            "pull of Ditto's personal models towards the global one; 0 trains them alone",
            minimum=0.0,
        ),
        Key(
            "ditto-local-epochs",
            0,
            "passes over the data that train Ditto's personal model in a round; with "
            "ditto-local-steps 0 too, as much as trains the global one",
            minimum=0,
        ),
        Key(
            "ditto-local-steps",
            0,
            "mini-batch steps that train Ditto's personal model in a round; 0 counts "
            "ditto-local-epochs instead",
            minimum=0,
        ),
        Key(
            "ditto-learning-rate",
            0.0,
            "step size of Ditto's personal models; 0 is learning-rate",
            minimum=0.0,
        ),
    )
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    def __init__(
        self,
        *,
        ditto_lambda: float = 1.0,
        ditto_local_epochs: int = 0,
        ditto_local_steps: int = 0,
        ditto_learning_rate: float = 0.0,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        super().__init__(**options)
        if self.wire == "numpy":
            raise ValueError(
                "wire='numpy' cannot go with clients that keep a personal model between "
                "rounds: a legacy NumPyClient app stores nothing"
            )
        self.personal = {
            "ditto-lambda": ditto_lambda,
            "ditto-local-epochs": ditto_local_epochs,
            "ditto-local-steps": ditto_local_steps,
            "ditto-learning-rate": ditto_learning_rate,
        }
        for name, value in self.personal.items():
            if not value >= 0:
                raise ValueError(
                    f"{name.replace('-', '_')} = {value}: expected a number >= 0"
                )

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Say how to train the personal model along with the global one."""
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, config={**exchange.config, **self.personal})
