"""FedBABU: a body that is trained in common under a head that never learns.

J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022, arXiv:2106.06042.

Client k trains the received body with the head frozen at the initial value, which is the
same on all clients. The server averages bodies, beta_{t+1} = sum_k (n_k / n) beta_k. At
evaluation each client tunes the whole model, its head or its body for some epochs on its
training data and scores the result on its test data; the tuned model is then dropped.

Known to hold: the head has the initial bits after any round, whatever weight decay and
momentum are; with a head that trains and travels the model is FedAvg's; without tuning
clients are scored with the model of the server. Deviations: five epochs of tuning by
default, in each round that is evaluated, where the authors tune once after the last one.
Their code takes the plain mean of the bodies.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    Arrays,
    ClientNeeds,
    Exchange,
    Release,
    key,
    part,
    spec_of,
)
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.personal.fedavg_ft import FedAvgFT


class FedBABU(FedAvgFT):
    """FedAvg of bodies under a fixed head, which clients tune before they are evaluated."""

    PRIVACY: ClassVar[Release] = Release(
        "mean", "only the body leaves a client; tuned copies never do"
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedBABUClient", "trains the body alone and is scored after fine-tuning"
    )
    NO_GLOBAL_MODEL: ClassVar[str] = "its head is not trained before a client tunes it"
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app sends its whole model back"

    fine_tune_epochs: int = 5
    fine_tune_part: Literal["full", "head", "body"] = key(
        default="full", help="what fine-tune-epochs train", told=EVALUATE
    )
    groups: ParameterGroups = part(
        help="groups of the model's arrays, as fedsuite.models.parameter_groups makes them"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups.body:
            raise ValueError(
                "FedBABU trains all but the head, and this model is a head alone: choose "
                "another model"
            )

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        records = {ARRAYS: spec_of(self._body(arrays))}
        return replace(exchange, expected=replace(exchange.expected, arrays=records))

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        averaged = super().aggregate(self._body(arrays))
        return None if averaged is None else {**arrays, **averaged}

    def _body(self, arrays: Arrays) -> Arrays:
        return {n: array for n, array in arrays.items() if n in self.groups.body}
