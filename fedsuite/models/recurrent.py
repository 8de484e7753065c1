"""Recurrent networks for sequences of words or events."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from typing_extensions import override

from fedsuite.core.errors import ConfigError

EMBEDDING = 200
HIDDEN = 256
LAYERS = 2

SEXES = 2
SEX_EMBEDDING = 8
POSTAL_EMBEDDING = 16
DROPOUT = 0.3


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


class EventSequenceNet(nn.Module):
    """Network that classifies a patient by events, sex and postal code.

    An input is ``[1 + events, 3]``: first a row (sex, postal code, unused), then one row
    (code, value, age) per event. Codes count from 1. Code 0 is padding, at the end only.
    Unknown sex and postal code are 0.

    Parameters
    ----------
    num_classes
        Number of scores.
    event_codes, postal_codes
        Largest event code and postal code.
    event_embedding
        Width of the embedding of an event's code.
    """

    def __init__(
        self, num_classes: int, event_codes: int, postal_codes: int, event_embedding: int
    ) -> None:
        super().__init__()
        self.events = nn.Embedding(1 + event_codes, event_embedding, padding_idx=0)
        self.sex = nn.Embedding(1 + SEXES, SEX_EMBEDDING)
        self.postal = nn.Embedding(1 + postal_codes, POSTAL_EMBEDDING)
        self.gru = nn.GRU(
            event_embedding + 2,
            HIDDEN,
            LAYERS,
            batch_first=True,
            bidirectional=True,
            dropout=DROPOUT,
        )
        self.energy = nn.Linear(2 * HIDDEN, HIDDEN)
        self.attention = nn.Linear(HIDDEN, 1, bias=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(2 * HIDDEN + SEX_EMBEDDING + POSTAL_EMBEDDING, num_classes)

    @override
    def forward(self, records: Tensor) -> Tensor:
        static = records[:, 0, :2].long()
        codes, measured = records[:, 1:, 0].long(), records[:, 1:, 1:]
        # A patient without events gets one of padding, because packing allows no empty
        # sequence.
        lengths = (codes > 0).sum(dim=1).clamp_min(1)
        inputs = torch.cat([self.events(codes), measured], dim=2)
        packed = pack_padded_sequence(
            inputs, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            self.gru(packed)[0], batch_first=True, total_length=codes.shape[1]
        )
        weights = self.attention_weights(states, lengths)
        context = (weights.unsqueeze(2) * states).sum(dim=1)
        whole = torch.cat([context, self.sex(static[:, 0]), self.postal(static[:, 1])], 1)
        return self.head(self.dropout(whole))  # type: ignore[no-any-return]

    def attention_weights(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the weight of each event, ``[patients, events]``, 0 for padding."""
        scores: Tensor = self.attention(torch.tanh(self.energy(states))).squeeze(2)
        places = torch.arange(scores.shape[1], device=scores.device)
        outside = places >= lengths.unsqueeze(1)
        return scores.masked_fill(outside, -torch.inf).softmax(dim=1)


def gru_events(
    input_shape: tuple[int, ...],
    num_classes: int,
    event_codes: int,
    postal_codes: int,
    event_embedding: int,
) -> nn.Module:
    """Return a GRU of two layers of 256 in both directions; see FedAKD, section 5."""
    if len(input_shape) != 2 or input_shape[0] < 2 or input_shape[1] != 3:
        raise ConfigError(
            "model gru-events: takes records of events, not inputs of shape "
            f"{input_shape}; use dataset synthetic-ehr, or another model"
        )
    return EventSequenceNet(num_classes, event_codes, postal_codes, event_embedding)
