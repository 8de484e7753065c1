"""What a stranger may import from ``fedsuite.strategies``, and what an error says."""

import pytest

from fedsuite import strategies


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("FedAvgM", r"FedAvg\(server_momentum="),
        ("FedAdam", r"FedAvg\(server_optimizer='adam'"),
        ("QFedAvg", r"QFFL\(qffl_q="),
    ],
)
def test_a_strategy_of_flowers_that_is_a_keyword_here_is_named(
    name: str, here: str
) -> None:
    with pytest.raises(ImportError, match=f"{name} of Flower is {here}"):
        getattr(strategies, name)


def test_another_name_is_an_attribute_that_is_not_there() -> None:
    assert not hasattr(strategies, "FedNothing")


def test_every_strategy_of_flowers_is_here_or_told_of() -> None:
    import flwr.serverapp.strategy as flowers

    ours = set(dir(strategies)) | set(strategies._KEYWORDS_HERE)
    elsewhere = {name for name in flowers.__all__ if name not in ours}
    assert elsewhere == {
        *("Bulyan", "FedXgbBagging", "FedXgbCyclic"),
        *(name for name in flowers.__all__ if name.startswith("DifferentialPrivacy")),
    }
