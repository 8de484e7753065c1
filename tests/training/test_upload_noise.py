"""Noise on uploads: clipping by hand, its size, and that nothing leaves without it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import RunError
from fedsuite.core.registry import METHODS
from fedsuite.core.rng import numpy_stream
from fedsuite.engines.api import run
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models import build_model
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies import load_strategy
from fedsuite.training.base import FederatedClient
from fedsuite.training.upload_noise import UploadNoise, privatise
from tests.helpers import run_digits
from tests.training.test_client import make, request, some_data

NEXT_TO_NONE = 1e-300
"""Noise that moves no number: with none a clip is refused."""

QUIET = UploadNoise(upload_noise_multiplier=0.0, upload_clip=1.0)


def test_clipping_by_hand() -> None:
    """A change (3, 4) over two arrays has norm 5: clipped to 1 it is (0.6, 0.8)."""
    start = {"a": np.array([1.0], np.float32), "b": np.array([[2.0]], np.float32)}
    arrays = {"a": np.array([4.0], np.float32), "b": np.array([[6.0]], np.float32)}
    clipped = privatise(arrays, start, QUIET, numpy_stream(0, "x"))
    np.testing.assert_allclose(clipped["a"], [1.6], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[2.8]], rtol=1e-6)
    assert clipped["a"].dtype == np.float32
    without = privatise(
        arrays,
        {},
        UploadNoise(upload_noise_multiplier=NEXT_TO_NONE, upload_clip=100.0),
        numpy_stream(0, "x"),
    )
    np.testing.assert_array_equal(without["b"], arrays["b"])


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=6),
    st.floats(0.01, 50),
)
def test_what_leaves_is_never_longer_than_the_clip(
    values: list[float], clip: float
) -> None:
    update = {"w": np.array(values)}
    clipped = privatise(
        update,
        {},
        UploadNoise(upload_noise_multiplier=NEXT_TO_NONE, upload_clip=clip),
        numpy_stream(0, "x"),
    )["w"]
    norm = float(np.linalg.norm(values))
    assert float(np.linalg.norm(clipped)) == pytest.approx(min(norm, clip))
    assert float(clipped @ values) == pytest.approx(norm * min(norm, clip))


@pytest.mark.parametrize(("multiplier", "clip"), [(1.0, 1.0), (2.0, 0.5), (0.1, 3.0)])
def test_noise_is_multiplier_times_clip(multiplier: float, clip: float) -> None:
    """Of 40,000 draws the deviation is known to within 2 %: 5 standard errors."""
    still = {"w": np.zeros(40_000)}
    options = UploadNoise(upload_noise_multiplier=multiplier, upload_clip=clip)
    noise = privatise(still, {}, options, numpy_stream(0, "x"))["w"]
    assert noise.std() == pytest.approx(multiplier * clip, rel=0.02)
    assert abs(noise.mean()) < 0.03 * multiplier * clip


class Uploads(FedAvgClient):
    """Sends a model, its first step, and a gradient: what FedEBA+'s client sends."""

    ACTIONS: ClassVar[Mapping[str, str]] = {
        **FedAvgClient.ACTIONS,
        "query.probe": "on_probe",
    }
    TRAINED: ClassVar = FedAvgClient.TRAINED | {"first-step"}
    SENDS: ClassVar = FedAvgClient.SENDS | {"first-step", "gradient"}

    def on_train(self, request: Request) -> Reply:
        received = request.arrays[ARRAYS]
        moved = {name: array + 10 for name, array in received.items()}
        return Reply({ARRAYS: moved, "first-step": moved}, {"num-examples": 1})

    def on_probe(self, request: Request) -> Reply:
        gradient = {name: array + 10 for name, array in request.arrays[ARRAYS].items()}
        return Reply({"gradient": gradient}, {"num-examples": 1, "loss": 0.5})


def private(client_class: type[FederatedClient], options: UploadNoise) -> Any:
    """Return a client on a network of 3 x 4 + 3 parameters."""
    model = build_model("linear", (4,), 3, 0)
    data = some_data(6)
    return client_class(model, data, data, client_id=2, seed=1, privacy=options)


def asked(client: FederatedClient, message_type: str, version: str = "1.1") -> Request:
    model = model_arrays(client.model)
    return Request(
        message_type, 2, {ARRAYS: model}, {"server-round": 1}, new_version=version
    )


def flat(arrays: Mapping[str, Any], start: Mapping[str, Any] | None = None) -> Any:
    return np.concatenate(
        [(a - (start[name] if start else 0)).ravel() for name, a in arrays.items()]
    )


NEARLY_QUIET = UploadNoise(upload_noise_multiplier=1e-6, upload_clip=2.0)


def test_every_record_that_leaves_is_clipped_where_it_belongs() -> None:
    client = private(Uploads, NEARLY_QUIET)
    before = model_arrays(client.model)
    reply = client.answer(asked(client, "train"))
    for name in (ARRAYS, "first-step"):
        assert np.linalg.norm(flat(reply.arrays[name], before)) == pytest.approx(
            2, rel=1e-3
        )
    probe = client.answer(asked(client, "query.probe"))
    assert np.linalg.norm(flat(probe.arrays["gradient"])) == pytest.approx(2, rel=1e-3)
    assert probe.metrics == {"num-examples": 1, "loss": 0.5}
    arrays, _, _ = client.fit(list(before.values()), {})
    change = flat(dict(zip(before, arrays, strict=True)), before)
    assert np.linalg.norm(change) == pytest.approx(2, rel=1e-3)


def test_noise_repeats_and_differs_between_uploads() -> None:
    options = UploadNoise(upload_noise_multiplier=1.0, upload_clip=1e-3)
    client = private(Uploads, options)
    start = model_arrays(client.model)
    first, again = (client.answer(asked(client, "train")) for _ in range(2))
    later = client.answer(asked(client, "train", "1.2"))
    noise = [
        flat(first.arrays[ARRAYS], start),
        flat(first.arrays["first-step"], start),
        flat(later.arrays[ARRAYS], start),
    ]
    np.testing.assert_array_equal(flat(again.arrays[ARRAYS], start), noise[0])
    for i, one in enumerate(noise):
        for other in noise[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.9


def test_no_noise_leaves_replies_as_they_are() -> None:
    client = private(Uploads, UploadNoise(upload_noise_multiplier=0.0))
    reply = client.answer(asked(client, "train"))
    start = model_arrays(client.model)
    np.testing.assert_array_equal(flat(reply.arrays[ARRAYS]), flat(start) + np.float32(10))


def test_statistics_of_normalisation_layers_are_refused() -> None:
    client = make(FedAvgClient)
    client.privacy = UploadNoise(upload_noise_multiplier=1.0, upload_clip=1.0)
    with pytest.raises(RunError, match=r"choose a model without normalisation layers"):
        client.answer(request("train"))


DIGITS = {
    "dataset": "digits",
    "num-clients": 4,
    "num-rounds": 1,
    "clients-per-round": 2,
    "checkpoint-every": 0,
    "report": False,
}


# The others refuse noise, and tests of theirs say so.
NOISY = [
    name
    for name, method in METHODS.items()
    if "upload-noise-multiplier"
    not in {**load_strategy(method).FIXED, **load_strategy(method).WITHOUT_EFFECT}
]


@pytest.mark.parametrize("method", NOISY)
def test_every_methods_uploads_pass_through(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clip of nearly nothing no model moves and no gradient gets out."""
    left: list[tuple[str, str]] = []
    usual = FederatedClient.answer

    def watch(self: FederatedClient, request: Request) -> Reply:
        reply = usual(self, request)
        sent = request.arrays.get(ARRAYS, {})
        for name, arrays in reply.arrays.items():
            start = sent if name in self.TRAINED else None
            if np.linalg.norm(flat(arrays, start)) > 1e-4:
                left.append((request.message_type, name))
        return reply

    monkeypatch.setattr(FederatedClient, "answer", watch)
    changes = {"upload-noise-multiplier": 1e-9, "upload-clip": 1e-5}
    public = (
        {"public-size": 64} if load_strategy(METHODS[method]).takes("public_rows") else {}
    )
    given = Experiment.from_values({**DIGITS, **public, "method": method, **changes})
    trace = run_digits(given)
    assert trace.error is None and len(trace.reports) == 1
    assert left == []


def test_first_steps_of_fedeba_plus_are_clipped_as_models(tmp_path: Path) -> None:
    """In its model branch: clipped to nearly nothing, they leave the model in place."""
    keys = {**DIGITS, "method": "fedeba-plus", "theta": 90.0, "output-dir": str(tmp_path)}
    quiet = {"upload-noise-multiplier": 1e-9, "upload-clip": 1e-5, "run-name": "run"}
    path = run({**keys, **quiet}).path
    final = load((path / "model.safetensors").read_bytes())
    initial = model_arrays(build_model("mlp", (1, 8, 8), 10, 0))
    assert np.abs(flat(final, initial)).max() < 1e-4


def test_keys_change_a_run_and_repeat_it(tmp_path: Path) -> None:
    def model(name: str, **changes: Any) -> bytes:
        keys = {key.replace("_", "-"): value for key, value in changes.items()}
        places = {"output-dir": str(tmp_path), "run-name": name}
        path = run({**DIGITS, **keys, **places}).path
        return (path / "model.safetensors").read_bytes()

    noise: dict[str, Any] = {"upload_noise_multiplier": 0.5, "upload_clip": 0.1}
    plain = model("plain")
    assert model("first", **noise) == model("second", **noise) != plain
    assert model("off", upload_noise_multiplier=0.0) == plain


def test_infinities_that_stayed_have_not_moved() -> None:
    start = {"w": np.float32([0.0, -np.inf])}
    options = UploadNoise(upload_noise_multiplier=1e-9, upload_clip=1.0)
    trained = {"w": np.float32([3.0, -np.inf])}
    made = privatise(trained, start, options, np.random.default_rng(0))
    assert made["w"] == pytest.approx([1.0, -np.inf], abs=1e-6)
