"""Cohorts give what clients give alone but for rounding, and refuse the rest."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedsuite
from fedsuite.clients import load_client
from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.messages.array_records import to_arrays
from fedsuite.results.layout import EXPERIMENT, MODEL, read_manifest
from fedsuite.running import cohort_size
from fedsuite.training import cohort
from fedsuite.training.base import overrides
from fedsuite.training.cohort_steps import train_together
from tests.helpers import digits_experiment

TOLERANCE = 1e-5
"""Largest difference of a parameter, all of which are below 1 here, from that of clients
that train alone."""

MLP = {"model": "mlp", "hidden_width": 8, "hidden_layers": 1}
FROZEN = {"coefficient_period": 2, "local_coefficients": "freeze"}
FACTORED = {"model": "cnn-shallow", "decomposition": True, "local_steps": 2}

CASES = {
    "fedavg": {},
    "linear": {"model": "linear"},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip_gradient_norm": 0.5},
    "focal": {"loss": "focal"},
    "fedsgd": {"method": "fedsgd"},
    "fednova": {"method": "fednova"},
    "fedbuff": {"method": "fedbuff"},
    "fedprox": {"method": "fedprox", "proximal_mu": 0.5},
    "scaffold": {"method": "scaffold"},
    "scaffold-gradient": {"method": "scaffold", "scaffold_option": "gradient"},
    "feddyn": {"method": "feddyn", "feddyn_alpha": 0.1},
    "feddc": {"method": "feddc", "feddc_alpha": 0.1},
    "fedeba": {"method": "fedeba"},
    "fedeba-plus": {"method": "fedeba-plus", "theta": 0.0},
    "prac-fedeba-plus": {"method": "prac-fedeba-plus"},
    "qffl": {"method": "qffl"},
    "feddisco": {"method": "feddisco"},
    "fedwavg": {"method": "fedwavg"},
    "standalone": {"method": "standalone"},
    "fedper": {"method": "fedper"},
    "fedrep": {"method": "fedrep"},
    "fedbabu": {"method": "fedbabu"},
    "fedprox-ft": {"method": "fedprox-ft", "proximal_mu": 0.5},
    "rank-core-fed": {"method": "rank-core-fed"},
    "decomposition": FACTORED,
    "decomposed-scaffold": {**FACTORED, "method": "scaffold", **FROZEN},
    "personal-atoms": {**FACTORED, "personal_atoms": True},
}


def experiment(**changes):
    values = {
        "num_clients": 5,
        "num_rounds": 2,
        "partitioner": "dirichlet",
        "test_fraction": 0.6,
        "batch_size": 16,
        "checkpoint_every": 0,
        **({} if "model" in changes else MLP),
        **changes,
    }
    return digits_experiment(**values)


def outcome(folder, **changes):
    """Return model and clients' lines of a run."""
    finished = run_local(experiment(**changes), folder)
    lines = (folder / "clients.jsonl").read_text().splitlines()
    return to_arrays(finished.result.arrays), [json.loads(line) for line in lines]


def assert_near(rows, others):
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[name], abs=1e-3), name
            else:
                assert value == other[name], name


@pytest.mark.parametrize("name", CASES)
def test_a_cohort_ends_where_clients_end_alone(tmp_path, monkeypatch, name):
    sizes = []

    def noted(network, trainings):
        sizes.append(len(trainings))
        return train_together(network, trainings)

    monkeypatch.setattr(cohort, "train_together", noted)
    alone, rows = outcome(tmp_path / "alone", **CASES[name])
    assert not sizes
    together, others = outcome(tmp_path / "together", cohort=3, **CASES[name])
    assert set(sizes) <= {3, 2} and 3 in sizes
    for key, array in alone.items():
        np.testing.assert_allclose(together[key], array, rtol=0, atol=TOLERANCE)
    assert_near(rows, others)


def held(folder: Path) -> list[bytes]:
    states = sorted((folder / "state").rglob("*.safetensors"))
    files = [folder / MODEL, folder / "clients.jsonl", folder / "events.jsonl", *states]
    return [file.read_bytes() for file in files if file.exists()]


def test_bits_do_not_depend_on_the_number_of_workers_or_on_a_stop(tmp_path):
    values = {"method": "scaffold", "drop_out": 0.2, "num_rounds": 3, "cohort": 2}
    values |= {"checkpoint_every": 1, "output_dir": str(tmp_path)}

    def ran(name, **changes):
        made = experiment(**{**values, **changes}, run_name=name)
        return fedsuite.run(made.values).path

    whole = held(ran("whole"))
    parts = ran("parts", num_rounds=1, workers=2)
    assert fedsuite.resume(parts, num_rounds=3).path == parts
    assert held(parts) == whole
    assert held(ran("shared", workers=2)) == whole
    assert b"planned drop-out" in (tmp_path / "shared" / "events.jsonl").read_bytes()


def test_the_choice_of_auto_is_recorded_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cohort_size.Worker, "step_seconds", lambda self, most: {1: 3.0, 2: 1.0, most: 2.0}
    )
    chosen = experiment(cohort="auto", checkpoint_every=1)
    run_local(chosen, tmp_path / "run")
    assert read_manifest(tmp_path / "run")["cohort"] == 2
    assert "cohort = 2\n" in (tmp_path / "run" / EXPERIMENT).read_text()
    monkeypatch.setattr(cohort_size.Worker, "step_seconds", lambda self, most: {1: 0.0})
    run_local(chosen.replace(resume=True, num_rounds=3), tmp_path / "run")
    run_local(experiment(cohort=2, num_rounds=3), tmp_path / "other")
    assert (tmp_path / "run" / MODEL).read_bytes() == (
        tmp_path / "other" / MODEL
    ).read_bytes()


def test_auto_tries_sizes_that_leave_a_cohort_to_each_worker():
    worker = cohort_size.Worker(experiment(cohort="auto"), cohort_size.MemoryStore())
    before = {n: a.clone() for n, a in worker.client(None, 0).model.state_dict().items()}
    assert sorted(worker.step_seconds(3)) == [1, 3]
    for name, array in worker.client(None, 0).model.state_dict().items():
        assert array.equal(before[name])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "moon"}, "key cohort = 2 with method = 'moon': .* set cohort = 1"),
        ({"method": "propfair"}, "key cohort = 2 with method = 'propfair'"),
        ({"engine": "ray"}, "key cohort = 2 with engine = 'ray': .* or cohort = 1"),
        ({"crop_and_flip": True}, "with crop-and-flip = True: .* set crop-and-flip = F"),
        ({"decorrelation_weight": 0.1}, "with decorrelation-weight = 0.1"),
        ({"logit_calibration": 0.1}, "with logit-calibration = 0.1"),
        ({"lsr_gamma": 0.1}, "with lsr-gamma = 0.1"),
        ({"cohort": 0}, 'key cohort = 0: expected a whole number >= 1 .* or "auto"'),
    ],
)
def test_what_trains_one_by_one_is_refused(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        experiment(**{"cohort": 2, **changes})


def test_networks_with_statistics_are_refused_before_the_first_round(tmp_path):
    with pytest.raises(
        ConfigError, match=r"key cohort: copies .* statistics .* cohort = 1"
    ):
        run_local(experiment(cohort=2, model="cnn-fedakd"), tmp_path / "run")


def test_clients_that_share_a_node_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"key cohort = 2: .* 5 clients share 2: leave"):
        run_local(experiment(cohort=2), tmp_path / "run", num_supernodes=2)


def test_a_class_that_says_it_can_train_in_cohorts_tells_all_its_hooks():
    classes = {load_client(method) for method in METHODS.values()}
    batched = {found for found in classes if vars(found).get("BATCHED")}
    hooks = ("loss", "mini_batches", "make_optimizer", "train_locally", "known_loss")
    hooks += ("training_loss", "layer_stream")
    for found in batched:
        client = found.__new__(found)
        assert not [hook for hook in hooks if overrides(client, hook)], found
        acts = overrides(client, "before_step") or overrides(client, "after_step")
        assert acts <= overrides(client, "batched_hook"), found
    assert len(batched) >= 18


def test_auto_counts_the_message_that_a_client_of_a_cohort_has_of_its_own(monkeypatch):
    monkeypatch.setattr(
        "fedsuite.running.worker.step_seconds", lambda *_: {1: 5e-5, 10: 2e-5}
    )

    def chosen(steps):
        values = experiment(cohort="auto", local_steps=steps)
        found = cohort_size.Worker(values, cohort_size.MemoryStore()).step_seconds(10)
        return min(found, key=found.get)

    # 1 ms more for a client, and 0.03 ms less for each of its steps.
    assert [chosen(steps) for steps in (1, 33, 34, 100)] == [1, 1, 10, 10]
