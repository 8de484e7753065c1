"""A run's model as a file that needs no fedsuite.

Each file holds ``model.json`` too (columns, classes, scaling), for the network takes inputs
that are scaled already: of ``torch.export`` as an extra file, of ONNX and safetensors under
that name in the metadata. The axis of rows is free. A card for people lies beside it.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.extras import naming_extras
from fedsuite.core.files import atomic_write, safetensors_bytes
from fedsuite.engines.trained.network import model_of
from fedsuite.models.arrays import model_arrays
from fedsuite.results.layout import MODEL_FACTS
from fedsuite.results.model_card import card
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import Client, Run

FORMATS = ("torch", "onnx", "safetensors")

INPUT, OUTPUT = "inputs", "outputs"
"""Names of the network's input and output in ONNX."""

_PROGRAM = ".pt2"

_ROWS = 2
"""Rows of the example; of one row torch would take the axis for a constant."""


def export(run: Run, file: Path, kind: str, client: Client | None = None) -> Path:
    """Write a run's model into a file; see :meth:`Run.export`."""
    if kind not in FORMATS:
        raise RunError(f"format {one_line(kind, 40)}: expected one of {', '.join(FORMATS)}")
    if kind == "torch" and file.suffix != _PROGRAM:
        # torch.export.load reads no other.
        raise RunError(f"format torch: name a file that ends in {_PROGRAM}")
    facts = ModelFacts.read(run.path)
    model = model_of(run, client)
    if kind == "safetensors":
        data = safetensors_bytes(model_arrays(model), facts.text())
    else:
        with _plainly(kind):
            program = _exported(model, facts)
            data = _pt2(program, facts) if kind == "torch" else _onnx(program, facts)
    atomic_write(file, data)
    atomic_write(file.with_name(f"{file.stem}-card.md"), card(run).encode())
    return file


@contextmanager
def _plainly(kind: str) -> Iterator[None]:
    """Keep the exporters' words to themselves; what they raise becomes one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), naming_extras(f"the format {kind}"):
            warnings.simplefilter("ignore")
            yield
    except RunError:
        raise
    except Exception as error:  # whatever torch raises of a network of somebody's own
        raise RunError(
            f"format {kind}: this network cannot be exported ({type(error).__name__}: "
            f"{one_line(error)}): take safetensors, its arrays"
        ) from error
    finally:
        logging.disable(before)


def _exported(model: nn.Module, facts: ModelFacts) -> Any:
    kind = torch.int64 if facts.words else torch.float32
    example = torch.zeros((_ROWS, *facts.input_shape), dtype=kind)
    rows = torch.export.Dim("rows")
    with torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=({0: rows},))


def _pt2(program: Any, facts: ModelFacts) -> bytes:
    data = io.BytesIO()
    torch.export.save(program, data, extra_files={MODEL_FACTS: facts.text()})
    return data.getvalue()


def _onnx(program: Any, facts: ModelFacts) -> bytes:
    import onnx
    import onnxscript  # noqa: F401  # torch's exporter needs it, and says so in a traceback

    converted = torch.onnx.export(
        program, input_names=[INPUT], output_names=[OUTPUT], verbose=False
    )
    assert converted is not None
    proto = converted.model_proto
    onnx.helper.set_model_props(proto, {MODEL_FACTS: json.dumps(facts.as_json())})
    return bytes(proto.SerializeToString())
