"""A method's own defaults: what the experiment says wins, and pairs are never mixed."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO
from fedsuite.core.registry import METHODS
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys, table_default
from fedsuite.experiment.own_defaults import LOCAL_WORK, OPTIMISER
from fedsuite.running import server as server_app
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import server_parts
from fedsuite.strategies import load_strategy

QUICKSTART = Path(__file__).parents[2] / "simulations" / "quickstart.toml"
USUAL = {
    "local-epochs": 1,
    "local-steps": 0,
    "batch-size": 32,
    "optimizer": "sgd",
    "learning-rate": 0.1,
    "learning-rate-decay": 1.0,
}
"""What the keys are where neither experiment nor method says anything."""


FEDEBA_BRINGS = (
    "method fedeba brings local-steps = 10, batch-size = 50, learning-rate-decay = 0.999"
)
FEDDF_BRINGS = (
    'method feddf brings optimizer = "adam", learning-rate = 0.001, public-size = 200; '
    "leaves out its own local-steps = 10, as the experiment describes that itself"
)


def resolved(method: str, values: dict[str, Any]) -> dict[str, Any]:
    experiment = Experiment.from_values({"method": method, **values})
    return {name: experiment[name] for name in USUAL}


def refusal(method: str, values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({"method": method, **values})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def own(method: str) -> dict[str, Any]:
    defaults = load_strategy(METHODS[method]).DEFAULTS
    return {name: defaults.get(name, value) for name, value in USUAL.items()}


KINDS = sorted(
    {str((own(m), load_strategy(METHODS[m]).FIXED)): m for m in METHODS}.values()
)
"""Of the methods with the same defaults and fixed keys one."""

SOME_WORK = st.fixed_dictionaries(
    {},
    optional={
        "local-epochs": st.sampled_from([AUTO, 1, 2, 7]),
        "local-steps": st.sampled_from([AUTO, 1, 5, 10]),
        "batch-size": st.sampled_from([AUTO, 0, 16, 32, 50]),
    },
)
SOME_RATE = st.fixed_dictionaries(
    {},
    optional={
        "optimizer": st.sampled_from([AUTO, "sgd", "adam"]),
        "learning-rate": st.sampled_from([AUTO, 0.1, 0.001, 0.03]),
        "learning-rate-decay": st.sampled_from([AUTO, 1.0, 0.999, 0.5]),
    },
)


@given(st.sampled_from(KINDS), SOME_WORK)
def test_local_work_is_the_experiments_or_the_methods_never_of_both(
    method: str, work: dict[str, Any]
) -> None:
    named = {name: value for name, value in work.items() if value != AUTO}
    found = resolved(method, work)
    whole = USUAL if named else own(method)
    expected = {name: named.get(name, whole[name]) for name in LOCAL_WORK}
    assert {name: found[name] for name in LOCAL_WORK} == expected
    # The other group is none of its business.
    assert [found[n] for n in OPTIMISER] == [own(method)[n] for n in OPTIMISER]


@given(st.sampled_from(KINDS), SOME_RATE)
def test_a_rate_and_an_optimiser_are_of_one_source(
    method: str, rate: dict[str, Any]
) -> None:
    fixed = load_strategy(METHODS[method]).FIXED
    named = {name: value for name, value in rate.items() if value != AUTO}
    mine = own(method)
    expected: dict[str, Any] | None
    if named.get("optimizer", "sgd") != fixed.get(
        "optimizer", named.get("optimizer", "sgd")
    ):
        expected = None
    elif not named:
        expected = mine
    elif "optimizer" not in named:
        expected = USUAL | named if mine["optimizer"] == "sgd" else None
    elif "learning-rate" in named or named["optimizer"] == "sgd":
        expected = USUAL | named
    elif mine["optimizer"] == named["optimizer"]:
        expected = {**USUAL, "learning-rate": mine["learning-rate"], **named}
    else:
        expected = None
    if expected is None:
        assert refusal(method, rate).startswith("key ")
        return
    found = resolved(method, rate)
    assert {n: found[n] for n in OPTIMISER} == {n: expected[n] for n in OPTIMISER}
    assert [found[n] for n in LOCAL_WORK] == [mine[n] for n in LOCAL_WORK]


def test_a_rate_without_its_optimiser_is_refused_where_the_method_has_another() -> None:
    assert refusal("feddf", {"learning-rate": 0.1}) == (
        "key learning-rate = 0.1: method feddf has adam at 0.001 by default, others sgd at "
        "0.1; name the optimizer too"
    )
    assert refusal("fedavg", {"optimizer": "adam"}) == (
        "key optimizer = 'adam': the default rate, 0.1, is for sgd; name the learning-rate "
        "too"
    )
    assert refusal("fedavg", {"optimizer": "adam", "learning-rate": 0.001, "momentum": 0.9})


def test_a_wrong_optimiser_is_named_before_its_rate_is_missed() -> None:
    assert "did you mean 'adam'?" in refusal("fedavg", {"optimizer": "adma"})


def test_a_file_means_the_same_work_whatever_its_method() -> None:
    files = {m: Experiment.load(QUICKSTART, {"method": m}) for m in METHODS}
    keys = (*LOCAL_WORK, *OPTIMISER)
    assert {tuple(e[name] for name in keys) for e in files.values()} == {
        (2, 0, 16, "sgd", 0.1, 1.0)
    }


def test_flowers_table_names_nothing() -> None:
    """Under ``flwr run`` every key arrives: what the user gave is told from the rest."""
    table = {name: table_default(name) for name in known_keys()}
    said = {"method": "fedeba", "local-epochs": 1}
    assert Experiment.from_values({**table, **said}) == Experiment.from_values(said)
    assert Experiment.from_values(said)["local-steps"] == 0
    said = {"method": "feddf", "public-dir": AUTO}
    assert Experiment.from_values({**table, **said})["public-size"] == 0


def test_the_serverapp_says_what_the_method_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under ``flwr run`` its output is the log that a person reads."""
    monkeypatch.setattr(server_app, "grid_for", lambda grid: grid)
    monkeypatch.setattr(server_app, "run_experiment", lambda *args, **options: None)
    table = {name: table_default(name) for name in known_keys()}
    config = {**table, "method": "fedeba", "output-dir": str(tmp_path)}
    context = Context(1, 1, {}, RecordDict(), config)
    server_app.main(None, context)
    assert capsys.readouterr().out == f"{FEDEBA_BRINGS}\n"


def test_public_rows_come_with_a_method_that_needs_them_unless_there_is_a_folder() -> None:
    for name, method in METHODS.items():
        rows = 200 if load_strategy(method).takes("public_rows") else 0
        assert Experiment.from_values({"method": name})["public-size"] == rows
    assert Experiment.from_values({"method": "fedal", "public-size": 7})["public-size"] == 7
    folder = {"method": "fedal", "public-dir": "somewhere"}
    assert Experiment.from_values(folder)["public-size"] == 0


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"method": "fedavg"}, ""),
        ({"method": "fedeba"}, FEDEBA_BRINGS),
        ({"method": "feddf", "local-epochs": 2}, FEDDF_BRINGS),
        (
            {"method": "fedsgd", "local-epochs": 2},
            "method fedsgd makes no use of local-epochs",
        ),
        ({"method": "fedeba", "local-steps": 10, "learning-rate": 0.1}, None),
    ],
)
def test_the_note_says_what_the_method_brings(
    values: dict[str, Any], note: str | None
) -> None:
    experiment = Experiment.from_values(values)
    if note is not None:
        assert experiment.note == note
    again = Experiment.from_values(experiment.values)
    assert again.note.partition(" makes no use")[0] in ("", "method fedsgd")
    assert again == experiment


@pytest.mark.parametrize("method", METHODS)
def test_every_method_begins_on_the_quickstart(method: str) -> None:
    """By ``--set method=NAME`` alone; that it learns is for the night."""
    experiment = Experiment.load(QUICKSTART, {"method": method})
    data = federated_data(experiment)
    model = network_model(experiment, data)
    build_strategy(experiment, server_parts(experiment, data, model))
