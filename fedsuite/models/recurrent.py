"""Recurrent networks on sequences of words."""

from torch import Tensor, nn

from fedsuite.errors import ConfigError

EMBEDDING = 200
HIDDEN = 256
LAYERS = 2


class StackedLSTM(nn.Module):
    """Predicts at each position the word that comes next.

    Parameters
    ----------
    words
        Size of the vocabulary: numbers 0 to ``words - 1`` come in, one score for each
        goes out.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, words)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores ``[rows, length, words]`` of word numbers ``[rows, length]``."""
        states: Tensor = self.lstm(self.embedding(words))[0]
        return self.head(states)  # type: ignore[no-any-return]


def lstm_reddit(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Embedding of 200, two layers of 256: 10,000 words make 5,565,328 parameters."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model lstm-reddit: takes sequences of words, not inputs of shape "
            f"{input_shape}; use dataset reddit, or another model"
        )
    return StackedLSTM(num_classes)
