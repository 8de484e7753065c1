"""FedDF: averages of a round's models, the specification's numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedsuite.messages.records import ARRAYS
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.distillation.feddf import FedDF
from fedsuite.strategies.distillation.feddf_al import FedDFAL
from tests.helpers import take_all
from tests.strategies.distillation.model_exchange import networks_of, strategy_of
from tests.strategies.distillation.public import Fixed


def reply(client_id: int, value: Sequence[float], num_examples: float) -> ClientReply:
    arrays = {ARRAYS: {"logits": np.array(value, np.float32)}}
    return ClientReply(client_id, arrays, {}, num_examples)


@pytest.mark.parametrize(
    ("average", "wanted"), [("size", (1 / 3, 1.0)), ("uniform", (0.5, 0.5))]
)
def test_the_specification_s_averages(average: Any, wanted: tuple[float, float]) -> None:
    builds = [lambda: Fixed(0.0, 0.0), lambda: Fixed(0.0, 0.0)]
    networks = networks_of(builds, (0, 1, 0))
    for kind in (FedDF, FedDFAL):
        strategy = strategy_of(kind, networks, feddf_average=average)
        replies = (reply(0, (1, -1), 10), reply(1, (3, 0), 30), reply(2, (0, 2), 20))
        take_all(strategy, {}, replies)
        found = strategy.averages()
        np.testing.assert_allclose(found[0]["logits"], wanted, atol=1e-6)
        np.testing.assert_array_equal(found[1]["logits"], (3, 0))


def test_clients_without_examples_have_no_part() -> None:
    networks = networks_of([lambda: Fixed(0.0, 0.0), lambda: Fixed(5.0, 5.0)], (0, 1, 0))
    for average in ("size", "uniform"):
        strategy = strategy_of(FedDF, networks, feddf_average=average)
        replies = (reply(0, (1, -1), 0), reply(1, (3, 0), 0), reply(2, (0, 2), 20))
        take_all(strategy, {}, replies)
        found = strategy.averages()
        assert list(found) == [0]
        np.testing.assert_array_equal(found[0]["logits"], (0, 2))
        new = strategy.updated(networks.join(networks.initial), found)
        np.testing.assert_array_equal(new["1/logits"], (5, 5))
