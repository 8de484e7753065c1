"""Recurrent network for sequences of words."""

from torch import Tensor, nn
from typing_extensions import override

from fedsuite.core.errors import ConfigError

EMBEDDING = 200
HIDDEN = 256
LAYERS = 2


class StackedLSTM(nn.Module):
    """Network that predicts the next word at each position.

    Parameters
    ----------
    words
        Size of the vocabulary: inputs are 0 to ``words - 1``, outputs one score per word.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, words)

    @override
    def forward(self, words: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(words))[0]
        return self.head(states)  # type: ignore[no-any-return]


def lstm_reddit(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return an LSTM of two layers: 10,000 words make 5,565,328 parameters."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model lstm-reddit: takes sequences of words, not inputs of shape "
            f"{input_shape}; use dataset reddit, or another model"
        )
    return StackedLSTM(num_classes)
