"""Runs with canaries: who takes part, what they send, and that they are found."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.vectors import norm
from fedsuite.engines.canaries import CanaryWatch, audit_noise, with_canaries
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import Arrays
from fedsuite.rounds import central_privacy
from fedsuite.training.attack_plan import canary_direction

SMALL: dict[str, Any] = {
    "model": "linear",
    "num-clients": 4,
    "num-rounds": 1,
    "batch-size": 512,
    "learning-rate": 0.5,
    "dp-noise-multiplier": 1e-9,
    "dp-clipping-norm": 0.01,
    "report": False,
    "checkpoint-every": 0,
    "seed": 3,
}


def experiment(**changes: Any) -> Experiment:
    values = {name.replace("_", "-"): value for name, value in changes.items()}
    return Experiment.from_values({**SMALL, **values})


def final(folder: Path, values: Experiment, **keys: Any) -> dict[str, np.ndarray]:
    name = str(len(list(folder.iterdir())))
    run = fedsuite.run(values.values, output_dir=str(folder), run_name=name, **keys)
    return load_file(run.path / "model.safetensors")


def test_canaries_are_clients_more_and_the_others_do_as_without_them(
    tmp_path: Path,
) -> None:
    """Of four clients and six canaries: 4/10 of the clients' step, 1/10 of directions."""
    without, beside = experiment(), with_canaries(experiment(), 6)
    assert beside.num_clients == 10
    start = final(tmp_path, without.replace(learning_rate=1e-300))
    honest, both = final(tmp_path, without), final(tmp_path, beside)
    directions = [canary_direction(3, k, start) for k in range(4, 10)]
    for name, origin in start.items():
        canaries = 0.01 * sum(direction[name] for direction in directions)
        expected = 0.4 * (honest[name] - origin) + canaries / 10
        np.testing.assert_allclose(both[name] - origin, expected, atol=2e-8)
    # Each client's step is as long as it may be.
    assert 0.3 < norm(*(honest[n] - start[n] for n in start)) / 0.01 <= 1.0


def test_a_canary_holds_another_clients_rows() -> None:
    alone = federated_data(experiment(client_validation_fraction=0.25))
    beside = federated_data(with_canaries(experiment(client_validation_fraction=0.25), 6))
    assert beside.num_clients == 10
    assert beside.client_names == ()
    for client_id in range(10):
        lent, own = alone.client(client_id % 4), beside.client(client_id)
        for part in ("train", "test", "validation"):
            assert getattr(own, part).labels.equal(getattr(lent, part).labels)


def test_directions_are_uniform_and_new_for_each_client() -> None:
    like: Arrays = {"w": np.zeros((30, 20), np.float32), "count": np.zeros(3, np.int64)}
    like["running_mean"] = np.zeros(5, np.float32)
    many = [canary_direction(0, client_id, like) for client_id in range(60)]
    assert all(set(direction) == {"w"} for direction in many)
    flat = np.array([direction["w"].ravel() for direction in many])
    inner = flat @ flat.T
    np.testing.assert_allclose(np.diag(inner), 1.0)
    others = inner[np.triu_indices(60, 1)] * np.sqrt(600)
    assert abs(others.mean()) < 0.1
    assert others.std() == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(
    ("keys", "total", "per_round"),
    [
        ({}, 24, 0),
        ({"clients-per-round": 1}, 24, 6),
        ({"clients-per-round": 2}, 24, 12),
        ({"clients-per-round": 3, "dp-sampling": "cycles"}, 24, 12),
        ({"clients-per-round": 1, "dp-sampling": "fixed"}, 24, 6),
        ({"clients-per-round": 3, "dp-sampling": "poisson"}, 24, 18),
    ],
)
def test_the_share_in_a_round_stays(
    keys: dict[str, Any], total: int, per_round: int
) -> None:
    audited = with_canaries(Experiment.from_values({**SMALL, **keys}), 20)
    assert audited.num_clients == total
    assert audited["clients-per-round"] == per_round
    assert audited["attack-strength"] == 0.01


def test_a_group_more_than_whole_is_rounded_up() -> None:
    """25 clients in two groups that take turns: 13 and 12."""
    audited = with_canaries(experiment(clients_per_round=3, dp_sampling="cycles"), count=21)
    assert audited["clients-per-round"] == 13


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"dp-adaptive-clipping": True}, "canaries would steer the norm"),
        ({"attack": "scale"}, "attack = 'scale': canaries take its place"),
        ({"evaluation-only": "1"}, "cannot go with attack|attack = 'canary'"),
    ],
)
def test_what_cannot_have_canaries(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        with_canaries(Experiment.from_values({**SMALL, **keys}), 6)
    assert "\n" not in str(caught.value)


def test_a_share_of_canaries_that_leaves_nobody() -> None:
    with pytest.raises(ConfigError, match="nobody is left to hold the data; give less"):
        experiment(attack="canary", attackers=1.0)


@pytest.mark.slow
def test_half_of_the_noise_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases of multiplier 0.5: mu of sqrt(8) less what updates lengthen it by."""
    told = experiment(dp_noise_multiplier=0.5, num_rounds=2)
    honest = vars(central_privacy)["system_gaussian"]
    audit = audit_noise(told, 60, str(tmp_path))
    monkeypatch.setattr(central_privacy, "system_gaussian", lambda s: honest(s) / 2)
    halved = audit_noise(told, 60, str(tmp_path))
    assert audit.accounted == halved.accounted == pytest.approx(15.456, abs=1e-3)
    assert audit.rounds == 2
    assert audit.final.epsilon(1e-5).low < audit.accounted
    assert halved.final.epsilon(1e-5).value > 1.2 * audit.final.epsilon(1e-5).value
    for shown in (audit, halved):
        unused = shown.final.unused * np.sqrt(shown.final.dimension)
        assert abs(unused.mean()) < 0.5
        assert unused.std() == pytest.approx(1.0, abs=0.35)
        assert shown.largest.used.mean() > shown.largest.unused.mean()


def state(matrix: np.ndarray) -> Any:
    return SimpleNamespace(arrays=to_record({"w": matrix}))


def test_the_cosines_are_with_the_change_and_not_with_the_model() -> None:
    like = {"w": np.zeros((4, 5), np.float32)}
    watch = CanaryWatch(0, range(2), range(2, 4))
    directions = [canary_direction(0, k, like)["w"] for k in range(4)]
    start = 7.0 + like["w"]
    watch.on_start(state(start))
    steps = [3 * directions[0], -2 * directions[0] + directions[1]]
    model = start.astype(float)
    for step in steps:
        model = model + step
        watch.on_round_end(state(model), report=None)  # type: ignore[arg-type]
    whole = np.sum(steps, axis=0)
    expected = [float((d * whole).sum()) / norm(whole) for d in directions]
    shown = watch.final()
    np.testing.assert_allclose([*shown.used, *shown.unused], expected, atol=1e-9)
    assert watch.largest().used[0] == pytest.approx(1.0)
    assert shown.dimension == 20
    assert watch.largest().dimension == 0
