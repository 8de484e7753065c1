"""What FedDF sends, keeps and resumes, and bad models that arrive."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedsuite.clients.distillation.feddf import FedDFClient
from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.messages.records import (
    ADVERSARIAL_GRADIENT,
    ARRAYS,
    EVALUATE,
    LOCAL_PHASE,
    LOGITS,
    MEAN_OUTPUTS,
    NUM_EXAMPLES,
    OUTPUTS,
    TRANSFER,
    Reply,
    Request,
)
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.strategies.distillation.ensemble import EnsembleDistillation
from fedsuite.strategies.distillation.feddf import FedDF
from fedsuite.strategies.distillation.feddf_al import FedDFAL
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.store import MemoryStore
from tests.helpers import digits_experiment, run_digits
from tests.strategies.distillation.model_exchange import TURNS, Small
from tests.strategies.distillation.public import CLASSES, small

# What arrives is suspect


class OfAnotherNetwork(FedDFClient):
    """Its second client sends what a client of the other network would."""

    def _completed(self, reply: Reply) -> Reply:
        done = super()._completed(reply)
        if self.client_id != 1 or ARRAYS not in done.arrays:
            return done
        return Reply({ARRAYS: model_arrays(small())}, done.metrics)


class Absurd(FedDFClient):
    """Its third client sends numbers that are finite, and whose outputs are not."""

    def _completed(self, reply: Reply) -> Reply:
        done = super()._completed(reply)
        if self.client_id != 2 or ARRAYS not in done.arrays:
            return done
        huge = {n: np.full_like(a, 3e38) for n, a in done.arrays[ARRAYS].items()}
        return Reply({ARRAYS: huge}, done.metrics)


@pytest.mark.parametrize("mode", ["client-kd", "server-kd"])
def test_a_model_of_another_network_is_not_used(mode: str) -> None:
    played = Small(client_class=OfAnotherNetwork, num_rounds=1, feddf_mode=mode)
    (rejection,) = played.trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert "array names differ" in rejection.reason
    for name, array in played.trace.arrays[0].items():
        assert np.array_equal(array, played.initial[name]) == name.startswith("1/")


@pytest.mark.parametrize("said", [torch.nan, -torch.inf, 2e6])
def test_a_model_that_says_nothing_is_neither_teacher_nor_averaged(
    said: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = EnsembleDistillation.outputs

    def outputs(self: EnsembleDistillation, index: int, arrays: Any) -> torch.Tensor:
        found = usual(self, index, arrays)
        if torch.isfinite(found).all():
            return found
        return torch.full_like(found, said)

    monkeypatch.setattr(EnsembleDistillation, "outputs", outputs)
    options: dict[str, Any] = {
        "feddf_mode": "server-kd",
        "feddf_server_steps": 4,
        "max_update_norm": "off",
    }
    played = Small(client_class=Absurd, num_rounds=1, **options)
    (rejection,) = played.trace.reports[0].train.rejections
    assert rejection.client_id == 2
    assert "outputs on public data" in rejection.reason

    class Silent(FedDFClient):
        def on_local_phase(self, request: Request) -> Reply:
            if self.client_id == 2:
                raise ConfigError("not today")
            return super().on_local_phase(request)

    assert Small(client_class=Silent, num_rounds=1, **options).final == played.final


def test_the_order_of_replies_does_not_matter() -> None:
    def backwards(messages: list[Message]) -> list[Message]:
        return messages[::-1]

    for kind, mode in (
        (FedDF, {}),
        (FedDF, {"feddf_mode": "server-kd", "feddf_server_steps": 3}),
        (FedDFAL, {}),
    ):
        usual = Small(kind, **mode)
        other = Small(kind, federation={"order": backwards}, **mode)
        assert usual.final == other.final


# What travels and what stays


def test_what_travels() -> None:
    for kind, mode in ((FedDF, "client-kd"), (FedDF, "server-kd"), (FedDFAL, "")):
        options = {"feddf_mode": mode} if mode else {}
        played = Small(kind, num_rounds=1, **options)
        grid = played.federation.grid

        def records(message_type: str, *, sent: bool) -> list[set[str]]:
            found = grid.arrays(message_type, sent=sent)  # noqa: B023
            return [{n.rpartition(".")[2] for n in message} for message in found]

        assert records(LOCAL_PHASE, sent=True) == [{ARRAYS}] * 3
        assert records(EVALUATE, sent=True) == [{ARRAYS}] * 3
        if mode == "server-kd":
            assert records(LOCAL_PHASE, sent=False) == [{ARRAYS}] * 3
            assert records(TRANSFER, sent=True) == []
            continue
        down = {MEAN_OUTPUTS} | ({ADVERSARIAL_GRADIENT} if kind is FedDFAL else set())
        assert records(TRANSFER, sent=True) == [down] * 6
        assert records(LOCAL_PHASE, sent=False) == [{OUTPUTS}] * 3
        assert records(TRANSFER, sent=False) == [{OUTPUTS}] * 3 + [{ARRAYS}] * 3
        first = grid.arrays(LOCAL_PHASE, sent=False)[1]
        assert first[f"client-1.{OUTPUTS}"][LOGITS].shape == (6, CLASSES)


@pytest.mark.parametrize(("mode", "steps"), [("client-kd", 2 * (2 + 2)), ("server-kd", 2)])
def test_what_clients_optimisers_remember(mode: str, steps: int) -> None:
    store = MemoryStore()
    options = {"feddf_server_steps": 1} if mode == "server-kd" else {}
    played = Small(federation={"store": store}, feddf_mode=mode, **options)
    for k, version in played.strategy.client_versions.items():
        state = store.load(k, version)
        taken = {float(a) for name, a in state.items() if name.endswith("/step")}
        assert taken == {float(steps)}


@pytest.mark.parametrize("method", ["feddf", "feddf-al"])
def test_clients_score_what_the_server_holds(method: str) -> None:
    experiment = digits_experiment(method=method, **TURNS, transfer_steps=1, num_rounds=2)
    trace = run_digits(experiment)
    data = federated_data(experiment)
    scored = {row["client"]: row for row in trace.reports[-1].evaluate.rows}
    for k in range(4):
        model = network_model(experiment, data, k % 2)
        names = model_arrays(model)
        load_arrays(model, {n: trace.arrays[-1][f"{k % 2}/{n}"] for n in names})
        loss, accuracy = evaluate_model(model, data.client(k).test)
        assert (scored[k]["loss"], scored[k]["accuracy"]) == (loss, accuracy)
        assert scored[k][NUM_EXAMPLES.replace("-", "_")] == len(data.client(k).test)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("feddf", {"transfer_steps": 2}),
        ("feddf", {"feddf_mode": "server-kd", "feddf_server_steps": 3}),
        ("feddf-al", {"transfer_steps": 2, "discriminator_learning_rate": 0.1}),
    ],
)
def test_a_run_that_is_resumed_is_the_same(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def files(name: str, **more: Any) -> bytes:
        changes = {**TURNS, **options, "num_rounds": 3, "checkpoint_every": 1, **more}
        run_local(digits_experiment(method=method, **changes), tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    whole = files("whole")
    files("part", num_rounds=2)
    assert files("part", resume=True) == whole
