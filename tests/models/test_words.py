"""The network of rows of words."""

import pytest
import torch

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model, parameter_groups


def test_padding_and_order_count_for_nothing() -> None:
    model = build_model("embedding-bag", (4,), 3, 0, vocabulary_size=10, embedding_width=5)
    rows = torch.tensor([[1, 2, 0, 0], [2, 1, 0, 0], [1, 1, 2, 2], [0, 0, 0, 0]])
    outputs = model(rows)
    assert outputs.shape == (4, 3)
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])
    torch.testing.assert_close(outputs[3], model.get_parameter("head.bias"))
    outputs.sum().backward()
    gradient = model.get_parameter("embedding.weight").grad
    assert gradient is not None
    assert gradient[1:3].abs().min() > 0
    assert not gradient[[0, *range(3, 10)]].any()
    assert parameter_groups(model).head == ("head.weight", "head.bias")


def test_what_is_no_word_is_refused() -> None:
    model = build_model("embedding-bag", (2,), 2, 0, vocabulary_size=10)
    for wrong in ([[1, 10]], [[-1, 3]]):
        with pytest.raises(ConfigError, match="outside 0 to 9: raise vocabulary-size"):
            model(torch.tensor(wrong))
    with pytest.raises(ConfigError, match="takes rows of word numbers"):
        model(torch.tensor([[0.5, 1.0]]))
    with pytest.raises(ConfigError, match="takes rows of words, not inputs of shape"):
        build_model("embedding-bag", (1, 8, 8), 2, 0)
