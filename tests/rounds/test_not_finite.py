"""A model that holds NaN or infinity is refused before anybody trains."""

from typing import Any

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.strategies import FedAvg
from tests.rounds.plain_app import plain_app, run_plain


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_model_that_is_not_finite_is_refused_before_anybody_trains(value: float) -> None:
    trained: list[int] = []

    def train(number: int, arrays: Any) -> Any:
        trained.append(number)
        return arrays, {"num-examples": 1}

    start = {"w": np.array([1.0, value], np.float32)}
    with pytest.raises(RunError, match="array w of the model that is sent holds NaN"):
        run_plain(FedAvg(), plain_app(train), start)
    assert not trained
