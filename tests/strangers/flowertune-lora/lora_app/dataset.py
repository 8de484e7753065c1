"""Sentences of numbers: each counts upwards from where it starts."""

import torch

from lora_app.models import VOCABULARY

LENGTH = 12


def load_data(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
    return (start + torch.arange(LENGTH)) % VOCABULARY
