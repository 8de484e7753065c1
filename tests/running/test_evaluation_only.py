"""Clients that never train: new sites, in every method and on sites of their own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

import fedsuite
from fedsuite.core.errors import ConfigError, FedsuiteError, RunError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.engines.api import at_home
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import EVALUATE, HELLO, NEW
from fedsuite.results.summary import render_new_clients
from fedsuite.running.server import run_experiment
from fedsuite.strategies import load_strategy
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.effects.runs import base
from tests.helpers import Trace, digits_experiment, run_digits
from tests.running.test_site_tables import KEYS, NAMES, SITES, Nodes, patients
from tests.small_runs import final_model

NEVER = frozenset({1})
OFFERED = sorted(
    name for name, m in METHODS.items() if not load_strategy(m).no_model_for_new()
)


def clients_of(trace: Trace, phase: str) -> set[Any]:
    reports = (report for one in trace.reports for report in one.phases)
    return {
        row["client"] for report in reports if report.phase == phase for row in report.rows
    }


def digits_run(method: str, **changes: Value) -> Trace:
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    values = {**base(method), "num-clients": 5, "evaluation-only": "1", "num-rounds": 2}
    return run_digits(Experiment.from_values({**values, "report": False, **keys}))


# Which clients do what


@pytest.mark.parametrize("method", OFFERED)
def test_a_new_client_is_evaluated_and_asked_for_nothing_else(method: str) -> None:
    """Its own side refuses all other messages: a rejected reply would tell."""
    # Newton's rounds are alike, and each takes a second for its Hessians.
    trace = digits_run(method, num_rounds=1 if method == "newton" else 2)
    assert clients_of(trace, "train") <= {0, 2, 3, 4}
    assert clients_of(trace, EVALUATE) == {0, 2, 3, 4}
    assert clients_of(trace, NEW) == NEVER
    for report in trace.reports:
        assert [r.reason for phase in report.phases for r in phase.rejections] == []
        assert report.evaluate is not None
        assert report.evaluate.num_asked == 4
        assert report.new is not None
        assert report.new.num_asked == 1


@pytest.mark.parametrize("method", ["ditto", "apfl", "fedrod", "fedala", "fml", "pfedme"])
def test_where_others_have_a_private_model_a_new_client_gets_the_shared_one(
    method: str,
) -> None:
    given = {**base(method), "num-clients": 5, "evaluation-only": "1", "num-rounds": 2}
    experiment = Experiment.from_values({**given, "report": False})
    trace = run_digits(experiment, MemoryStore())
    from fedsuite.experiment.data_and_models import network_model
    from fedsuite.models.arrays import load_arrays

    data = federated_data(experiment)
    model = network_model(experiment, data)
    load_arrays(model, trace.arrays[-1])
    assert trace.reports[-1].new is not None
    (row,) = trace.reports[-1].new.rows
    assert row["loss"] == pytest.approx(evaluate_model(model, data.client(1).test)[0])


def test_a_tuning_method_tunes_on_the_new_client_s_own_rows() -> None:
    tuned, shared = digits_run("fedavg-ft"), digits_run("fedavg")
    accuracies = [
        t.reports[-1].new.accuracies()[0] for t in (tuned, shared) if t.reports[-1].new
    ]
    assert accuracies[0] > accuracies[1] + 0.1


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(OFFERED)))
def test_a_method_without_a_model_for_new_clients_refuses_them(method: str) -> None:
    with pytest.raises(ConfigError, match="a client that never trained has no model") as no:
        Experiment.from_values({**base(method), "evaluation-only": "1"})
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"evaluation-only": "9"}, "no client '9': clients are 0 to 3"),
        ({"evaluation-only": "north"}, "no client 'north': clients are 0 to 3"),
        ({"evaluation-only": "1, 1"}, "names client '1' twice"),
        ({"evaluation-only": "0, 1, 2, 3"}, "no client is left that has rows to train on"),
        ({"evaluation-only": "1", "attack": "sign-flip"}, "tells no lie"),
        ({"evaluation-only": "1", "clients-per-round": 4}, "there are no more clients"),
        ({"best-model-metric": "new_accuracy_mean"}, "are not new to it"),
        (
            {
                "evaluation-only": "1",
                "model": "cnn",
                "personal-atoms": True,
                "decomposition": True,
            },
            "has no atoms of its own",
        ),
    ],
)
def test_what_cannot_be(keys: dict[str, Value], message: str) -> None:
    with pytest.raises(FedsuiteError) as no:
        run_digits(digits_experiment(**{k.replace("-", "_"): v for k, v in keys.items()}))
    assert message in str(no.value)
    assert "\n" not in str(no.value)


def test_it_goes_with_samples_drop_outs_and_fedbuff() -> None:
    for method, keys in (
        ("fedavg", {"clients_per_round": 2}),
        ("fedavg", {"drop_out": 0.5}),
        ("fedbuff", {"fedbuff_share": 0.5}),
    ):
        trace = digits_run(method, num_rounds=4, **keys)
        assert clients_of(trace, "train") <= {0, 2, 3, 4}
        assert all(r.new is not None and len(r.new.rows) == 1 for r in trace.reports)


def test_privacy_counts_those_who_train() -> None:
    """Two of four train in a round, not two of five."""
    noise = {"dp_noise_multiplier": 1.0, "clients_per_round": 2, "num_clients": 5}
    with_new = run_digits(digits_experiment(**noise, evaluation_only="4"))
    alike = run_digits(digits_experiment(**{**noise, "num_clients": 4}))
    pairs = zip(with_new.reports, alike.reports, strict=True)
    assert all(a.metrics["epsilon"] == b.metrics["epsilon"] for a, b in pairs)


def test_new_clients_move_no_number_of_the_others() -> None:
    """Each mean, median and spread is of the four that train alone."""
    trace = digits_run("fedavg")
    for report in trace.reports:
        assert report.evaluate is not None
        accuracies = [row["accuracy"] for row in report.evaluate.rows]
        assert report.metrics["accuracy_mean"] == pytest.approx(np.mean(accuracies))
        assert report.metrics["clients_trained"] == 4
        assert report.new is not None
        assert report.metrics["new_accuracy_mean"] == report.new.rows[0]["accuracy"]


# Sites of their own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sites")
    for seed, name in enumerate(NAMES):
        (root / name).mkdir()
        # What a third site has would move every mean.
        rows = patients(10 * seed)
        rows.to_csv(root / name / "rows.csv", index=False)
    (root / "schema.json").write_text(str(KEYS["schema"]))
    return root


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSUITE_STATE", str(tmp_path / "state"))


def rehearsed(tmp_path: Path, folder: Path, name: str, **changes: Value) -> Any:
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    where = {"output-dir": str(tmp_path), "run-name": name, "site-dirs": str(folder)}
    return fedsuite.run({**KEYS, **SITES, **where, **keys})


def two_alone(tmp_path: Path, folder: Path) -> Any:
    return rehearsed(tmp_path, folder, "two", sites="north, east")


def test_the_model_is_that_of_the_others_alone(folder: Path, tmp_path: Path) -> None:
    """Means of columns, sums of models, and the guard's medians are without the third."""
    two = two_alone(tmp_path, folder)
    new = rehearsed(tmp_path, folder, "new", evaluation_only="south")
    every = rehearsed(tmp_path, folder, "all")
    assert final_model(new.path) == final_model(two.path) != final_model(every.path)
    last = json.loads((new.path / "summary.json").read_text())
    assert last["accuracy_in_per_cent"]["num_clients"] == 2
    table = last["new_clients"]["accuracy"]
    assert list(table["of"]) == ["south"]
    assert table["mean_of_trained"] == pytest.approx(100 * two.rounds[-1]["accuracy_mean"])
    lines = render_new_clients(last["new_clients"])
    assert "south" in lines
    assert "mean, trained" in lines


@pytest.mark.parametrize("who_says_so", ["site", "server", "rows"])
def test_nodes_train_to_the_bits_of_the_others_alone(
    who_says_so: str, folder: Path, tmp_path: Path
) -> None:
    two = two_alone(tmp_path, folder)
    by_key = {"evaluation-only": "south"} if who_says_so == "server" else {}
    where = {"output-dir": str(tmp_path), "run-name": "real"}
    given = Experiment.from_values({**KEYS, **SITES, **where, **by_key})
    nodes = Nodes(given, folder)
    if who_says_so == "site":
        nodes.configs[1002]["evaluation-only"] = True
    if who_says_so == "rows":
        (tmp_path / "south").mkdir()
        patients(20).to_csv(tmp_path / "south" / "test-1.csv", index=False)
        nodes.configs[1002]["data"] = str(tmp_path / "south")
    with flower_identity():
        real = run_experiment(given, nodes, tmp_path / "real", flwr_run_id=7)
    assert final_model(real.path) == final_model(two.path)
    asked = {m.metadata.message_type for m in nodes.told if is_of_south(m)}
    assert asked == {HELLO, EVALUATE}
    rows = fedsuite.load_run(real.path).clients()
    assert {row["client"] for row in rows if row["phase"] == NEW} == {"south"}
    assert {row["client"] for row in rows if row["phase"] != NEW} == {"north", "east"}


def is_of_south(message: Message) -> bool:
    return message.metadata.src_node_id == 1002


def test_a_site_that_only_evaluates_sends_no_sums(folder: Path, tmp_path: Path) -> None:
    given = Experiment.from_values({**KEYS, **SITES, "run-name": "real"})
    nodes = Nodes(given, folder)
    nodes.configs[1002]["evaluation-only"] = True
    with flower_identity():
        run_experiment(given, nodes, tmp_path / "real", flwr_run_id=7)
    hellos = {
        m.metadata.src_node_id: set(m.content.config_records.get("hello", {}))
        for m in reversed(nodes.told)
        if m.metadata.message_type == HELLO
    }
    assert not {name for name in hellos[1002] if name.startswith("column-sums")}
    assert {name for name in hellos[1001] if name.startswith("column-sums")}


@pytest.mark.parametrize(
    ("method", "message"),
    [("fedper", "cannot go with FedPer: each client keeps a part"), ("fedavg", "one must")],
)
def test_sites_that_say_so_where_it_cannot_be(
    method: str, message: str, folder: Path, tmp_path: Path
) -> None:
    given = Experiment.from_values(
        {**KEYS, **SITES, "run-name": "real", "method": method, "model": "mlp"}
    )
    nodes = Nodes(given, folder)
    some = [1002] if method == "fedper" else list(nodes.configs)
    for node in some:
        nodes.configs[node]["evaluation-only"] = True
    with flower_identity(), pytest.raises(RunError, match=message):
        run_experiment(given, nodes, tmp_path / "real", flwr_run_id=7)


def test_a_site_that_has_trained_cannot_become_new(folder: Path, tmp_path: Path) -> None:
    from fedsuite.rounds.membership import Directory

    directory = Directory("registered", None, 1.0, site_names=NAMES)
    directory.facts[2] = {}
    assert "has trained in this run" in directory._changed_sides(2, {"evaluation-only": 1})
    assert directory._changed_sides(1, {"evaluation-only": 1}) == ""
    assert directory._new == {1}


def test_a_node_s_setting_is_true_or_false(folder: Path, tmp_path: Path) -> None:
    from fedsuite.data.site import site_from_config

    config: Mapping[str, Value] = {"data": str(folder), "evaluation-only": "yes"}
    with pytest.raises(
        ConfigError, match="evaluation-only = 'yes': expected true or false"
    ):
        site_from_config(config)


# Tables divided by a column


def hospitals(tmp_path: Path, parts: bool = False) -> Path:
    folder = tmp_path / "one"
    folder.mkdir()
    frames = [patients(seed).assign(hospital=name) for seed, name in enumerate(NAMES)]
    frame = pd.concat(frames).sample(frac=1, random_state=0)
    frame.to_csv(folder / "rows.csv", index=False)
    return folder


def test_a_hospital_of_a_table_is_named(tmp_path: Path) -> None:
    keys = KEYS | {"data-dir": str(hospitals(tmp_path)), "client-column": "hospital"}
    where = {"output-dir": str(tmp_path), "run-name": "run", "evaluation-only": "north"}
    done = fedsuite.run({**keys, **where})
    rows = done.clients()
    assert {row["client"] for row in rows if row["phase"] == NEW} == {"north"}
    assert {row["client"] for row in rows if row["phase"] == "train"} == {"east", "south"}
    model = done.client_model("north")
    data = federated_data(at_home(Experiment.from_values({**keys, **where})))
    recorded = done.client_values(NEW, "accuracy")["north"]
    assert evaluate_model(model, data.client(1).test)[1] == pytest.approx(recorded)
    others = np.concatenate([data.partition.train[k] for k in (0, 2)])
    raw = data._raw.features[data._rows.train[others]][:, 0].astype(float)
    assert data.column_scaling is not None
    np.testing.assert_allclose(data.column_scaling.means[0], raw.mean(), rtol=1e-6)


def test_the_server_keeps_no_rows_of_a_new_hospital(tmp_path: Path) -> None:
    keys = KEYS | {"data-dir": str(hospitals(tmp_path)), "client-column": "hospital"}
    keys |= {"evaluation-only": "north", "server-validation-fraction": 0.1}
    with pytest.raises(
        ConfigError, match="drawn from all owners, also from those that are"
    ):
        fedsuite.run({**keys, "output-dir": str(tmp_path), "run-name": "run"})


def test_a_resumed_run_has_the_same_new_clients(tmp_path: Path) -> None:
    keys = {**digits_experiment(evaluation_only="3").values, "output-dir": str(tmp_path)}
    keys |= {"checkpoint-every": 1, "num-rounds": 2}
    whole = fedsuite.run({**keys, "run-name": "whole", "num-rounds": 4})
    first = fedsuite.run({**keys, "run-name": "parts"})
    parts = fedsuite.resume(first.path, num_rounds=4)
    assert final_model(parts.path) == final_model(whole.path)
    told = [[r["new_accuracy_mean"] for r in run.rounds] for run in (whole, parts)]
    assert told[0] == told[1]
