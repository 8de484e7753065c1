"""Network for the classes of rows of words, such as reports or messages."""

from torch import Tensor, nn
from typing_extensions import override

from fedsuite.core.errors import ConfigError

PADDING = 0
"""Number that stands for no word, behind the end of a short row."""


class EmbeddingBag(nn.Module):
    """Mean of a row's embedded words, then one linear layer.

    Parameters
    ----------
    words
        Size of the vocabulary: inputs are 0 to ``words - 1``, int64, and 0 is no word.
    width
        Numbers that stand for a word.
    num_classes
        Number of outputs.
    """

    def __init__(self, words: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.head = nn.Linear(width, num_classes)

    @override
    def forward(self, words: Tensor) -> Tensor:
        if words.is_floating_point():
            raise ConfigError(
                "model embedding-bag: takes rows of word numbers (int64), not of numbers: "
                "set tokens in the table's schema, or choose another model"
            )
        largest = self.embedding.num_embeddings - 1
        if words.numel() and not 0 <= int(words.min()) <= int(words.max()) <= largest:
            raise ConfigError(
                f"model embedding-bag: a word's number is outside 0 to {largest}: raise "
                "vocabulary-size"
            )
        known = (words != PADDING).to(self.head.weight.dtype)
        total = (self.embedding(words) * known[..., None]).sum(dim=1)
        mean = total / known.sum(dim=1, keepdim=True).clamp(min=1)
        scores: Tensor = self.head(mean)
        return scores


def embedding_bag(
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary_size: int,
    embedding_width: int,
) -> nn.Module:
    """Return the network; 10,000 words of width 64 and two classes make 640,130."""
    if len(input_shape) != 1:
        raise ConfigError(
            f"model embedding-bag: takes rows of words, not inputs of shape {input_shape}; "
            "choose another model"
        )
    return EmbeddingBag(vocabulary_size, embedding_width, num_classes)
