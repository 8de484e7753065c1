"""Models as files that need no fedsuite: the same outputs, any number of rows."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedsuite.cli import app
from fedsuite.core.errors import RunError
from tests.engines.trained.test_client_models import finished


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a part at each client, which is the harder case."""
    return finished(tmp_path_factory.mktemp("export"), method="fedrod")


def outputs_of(kind, file, inputs):
    if kind == "torch":
        extra = {"model.json": ""}
        program = torch.export.load(file, extra_files=extra)
        assert '"input_shape": [1, 8, 8]' in extra["model.json"]
        return program.module()(inputs).detach().numpy()
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    model = onnx.load(str(file))
    assert [entry.key for entry in model.metadata_props] == ["model.json"]
    return reference.ReferenceEvaluator(model).run(None, {"inputs": inputs.numpy()})[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ending"), [("torch", "pt2"), ("onnx", "onnx")])
def test_an_exported_network_gives_the_same(kind, ending, run, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    file = tmp_path / f"model.{ending}"
    command = ["export", str(run.path), "--format", kind, "--client", "1"]
    result = CliRunner().invoke(
        app, [*command, "--output", str(file)], catch_exceptions=False
    )
    assert result.exit_code == 0
    for rows in (1, 5):
        inputs = torch.rand(rows, 1, 8, 8)
        wanted = run.client_model(1)(inputs).detach().numpy()
        np.testing.assert_allclose(outputs_of(kind, file, inputs), wanted, atol=1e-5)


def test_safetensors_hold_the_named_arrays(run, tmp_path):
    file = run.export(tmp_path / "model.safetensors", "safetensors", 1)
    arrays = load_file(file)
    assert arrays.keys() == run.client_model(1).state_dict().keys()
    for name, tensor in run.client_model(1).state_dict().items():
        assert np.array_equal(arrays[name], tensor.numpy())


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "apfl", "fedem", "pfedpara", "fedbn", "heterofl", "fedal"]
)
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_over_kinds_of_models(method, kind, tmp_path):
    run = finished(tmp_path, method=method)
    file = run.export(tmp_path / ("m.pt2" if kind == "torch" else "m.onnx"), kind, 2)
    inputs = torch.rand(3, 1, 8, 8)
    wanted = run.client_model(2)(inputs).detach().numpy()
    np.testing.assert_allclose(outputs_of(kind, file, inputs), wanted, atol=1e-5)


def test_what_cannot_be_is_one_line(run, tmp_path):
    with pytest.raises(RunError, match="expected one of torch, onnx, safetensors"):
        run.export(tmp_path / "model.pt", "pickle")
    with pytest.raises(RunError, match=r"ends in \.pt2"):
        run.export(tmp_path / "model.pt", "torch")
