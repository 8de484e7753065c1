"""The line with which a run starts, and what the manifest says of device and network."""

import pytest
import torch

from fedsuite.running.description import device_words, run_facts, starting_line
from tests.helpers import digits_experiment


def test_a_run_is_one_line() -> None:
    experiment = digits_experiment(engine="local", method="fedeba-plus", num_rounds=1)
    model = torch.nn.Linear(200, 1000)
    assert starting_line(experiment, run_facts(experiment, model, None)) == (
        "FedEBAPlus on digits, 4 clients, 1 round, linear of 201,000 parameters, "
        "local engine, cpu"
    )


@pytest.mark.parametrize(
    ("engine", "device", "gpu", "words"),
    [
        ("local", "auto", False, "cpu"),
        ("local", "auto", True, "cuda (H100)"),
        ("ray", "auto", False, "cpu"),
        # Ray shows a client the GPUs that it reserves, and a site has its own.
        ("ray", "auto", True, "each client's own"),
        ("deployment", "auto", False, "each client's own"),
        ("deployment", "cpu", True, "cpu"),
        ("deployment", "cuda", False, "cuda"),
    ],
)
def test_the_device_is_named_as_far_as_the_server_knows_it(
    engine: str, device: str, gpu: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    assert device_words(digits_experiment(engine=engine, device=device)) == words
