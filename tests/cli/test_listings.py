"""Tables for people: everything that is registered is in them, with its own words."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich import box
from rich.console import Console
from rich.text import Text

import fedsuite
from fedsuite.cli.listings import (
    broken_table,
    datasets_table,
    doctor_report,
    method_keys_table,
    methods_table,
    models_table,
    needs_table,
    partition_listing,
    shift_listing,
)
from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.data import DATASETS, PARTITIONERS, ClientShift
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.models import MODELS
from fedsuite.results.tables import print_table
from fedsuite.strategies import load_strategy
from tests.plug_ins.fakes import example, installed, write_package


def rows(table):
    """Return the cells of a table as rows of text, as a wide console shows them."""
    console = Console(file=io.StringIO(), width=1000)
    table.box = box.HEAVY_HEAD
    console.print(table)
    lines = [line for line in console.file.getvalue().splitlines() if "│" in line]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def cells(table):
    """Return the cells of a table without drawing it: as :func:`rows`, a tenth as long."""
    columns = [
        [Text.from_markup(str(c)).plain for c in col._cells] for col in table.columns
    ]
    return [[cell.strip() for cell in row] for row in zip(*columns, strict=True)]


def test_cells_are_what_a_console_shows():
    table = method_keys_table("fedavg", every=True)
    assert cells(table) == rows(table)


def test_methods_have_their_papers_and_keys():
    found = {row[0]: row[1:] for row in rows(methods_table())}
    families = {method.strategy.partition(".")[0] for method in METHODS.values()}
    assert set(found) == set(METHODS) | families
    assert found["fedprox"] == [
        (load_strategy(METHODS["fedprox"]).__doc__ or "").splitlines()[0],
        "server-learning-rate, proximal-mu",
        "Li et al., MLSys 2020, arXiv:1812.06127",
    ]
    assert all(found[name][0].endswith(".") for name in METHODS)


def test_needs_of_clients_are_what_the_strategies_declare():
    told = {
        name: needs for needs, names in rows(needs_table()) for name in names.split(", ")
    }
    strategies = [load_strategy(method) for method in METHODS.values()]
    declared = {s.__name__: s.NEEDS_OF_CLIENT.words for s in strategies}
    own = {name: f"{name}Client" for name in told if told[name].startswith("its own: ")}
    assert told | own == declared
    assert told["FedMGDAPlus"] == "nothing"
    assert told["FedNova"] == "metric num-steps (local_steps)"
    assert told["FedPer"] == told["LGFedAvg"] == "PartialClient"


@pytest.mark.parametrize("method", METHODS)
def test_keys_are_those_that_an_experiment_may_set(method):
    names = {row[0] for row in cells(method_keys_table(method, every=True))}
    assert {key.name for key in RunSettings.KEYS} < names
    assert set(Experiment.from_values({"method": method}).values) <= names
    others = {
        key.name
        for other in METHODS.values()
        for key in load_strategy(other).method_keys()
        if other.name != method
    } - {key.name for key in load_strategy(METHODS[method]).method_keys()}
    assert not others & names


def test_keys_have_the_methods_own_defaults():
    def defaults(method):
        return {row[0]: row[1] for row in rows(method_keys_table(method, every=True))}

    found = defaults("fedsgd")
    assert (found["local-steps"], found["batch-size"]) == ("1", "0")
    assert found["resume"] == "false"
    assert found["dataset"] == '"digits"'
    found = defaults("fedavg")
    assert (found["local-steps"], found["batch-size"]) == ("0", "32")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_alone_has_its_keys_and_the_defaults_that_it_changes(method):
    strategy = load_strategy(METHODS[method])
    found = [row[:2] for row in cells(method_keys_table(method))]
    keys = {name: default for name, default in found if default and name != "key"}
    assert set(keys) == {key.name for key in strategy.method_keys()} | set(
        strategy.DEFAULTS
    )
    assert len(keys) == sum(bool(default) for _, default in found)


def test_keys_stand_under_what_brings_them():
    under, title = {}, ""
    for row in rows(method_keys_table("fedavg", every=True)):
        title, name = (title, row[0]) if row[1] else (row[0], "")
        under.setdefault(title, set()).add(name)
    assert "dirichlet-alpha" in under["partitioner dirichlet"]
    assert "dirichlet-alpha" not in under["data"]
    assert not any("shards" in name for name in under.get("partitioner iid", ()))
    for name, division in PARTITIONERS.items():
        listed = under.get(f"partitioner {name}", {""}) - {""}
        assert listed == {key.name for key in division.KEYS}


def test_unknown_method_gets_the_nearest():
    with pytest.raises(ConfigError, match="'fedpox': did you mean 'fedprox'"):
        method_keys_table("fedpox")


def test_datasets_say_which_files_they_need():
    found = {row[0]: row[1:] for row in rows(datasets_table())}
    assert set(found) == set(DATASETS)
    assert found["digits"][:3] == ["10", "1 x 8 x 8", "none: embedded or generated"]
    assert found["mnist"][2] == "mnist/train-*.parquet, mnist/test-*.parquet"
    for own in ("own-table", "own-pictures"):
        assert found[own][:3] == ["?", "as its rows", "your own"]
    assert found["tcga-brca"][0] == "none"


def test_what_packages_add_stands_under_them(tmp_path, monkeypatch, capsys):
    broken = {"fedsuite.models": {"lost": "no_such_module:Net"}}
    write_package(tmp_path / "broken", "broken", broken)
    assert broken_table() is None
    with example(tmp_path / "one"), installed(tmp_path / "broken"):
        for table, name in (
            (methods_table, "anchored"),
            (models_table, "two-layers"),
            (datasets_table, "stripes"),
        ):
            names = [row[0] for row in rows(table())]
            assert names[-2:] == ["fedsuite-example 0.1.0", name]
            assert "lost" not in names
            # In one line, on a page's width and on a terminal's.
            for width in ("140", "80"):
                monkeypatch.setenv("COLUMNS", width)
                print_table(table())
                assert "fedsuite-example 0.1.0 " in capsys.readouterr().out
        ((package, name, reason),) = rows(broken_table())
        assert (package, name) == ("broken 1.0", "lost")
        assert "there is no module 'no_such_module' here" in reason


def test_models_have_their_keys():
    found = {row[0]: row[1:] for row in rows(models_table())}
    assert set(found) == set(MODELS)
    assert found["mlp"][1] == "hidden-width, hidden-layers"


def test_partition_rows_are_the_data():
    experiment = Experiment.from_values({"partitioner": "shards", "num-clients": 5})
    data = federated_data(experiment)
    found = np.array(
        [[int(c.replace("·", "0")) for c in row] for row in rows(partition_listing(data))]
    )
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (found[:, 1] == data.class_counts().sum(axis=1)).all()
    assert (found[:, 2] == data.test_class_counts().sum(axis=1)).all()
    assert (found[:, 4:] == data.class_counts()).all()
    assert (found[:, 3] == (data.class_counts() > 0).sum(axis=1)).all()


def test_shifts_are_the_datas():
    shifts = (
        ClientShift(12.345, None, 0.98765, 69.12, 858, 0.5, None),
        ClientShift(120.4, 1.0, 1.0, 4e4, 10243, 0.0, 3.14159),
    )
    assert rows(shift_listing(shifts)) == [
        ["0", "12.3", "–", "0.988", "69.1", "858", "0.5", "–"],
        ["1", "120", "1", "1", "40000", "10243", "0", "3.14"],
    ]


def test_doctor_shows_paths_and_advice_as_they_are(monkeypatch):
    from fedsuite.cli import listings
    from fedsuite.engines import facts as about

    facts = about.flower_facts()
    changed = {"torch": "", "flwr-clientapp-path": "", "system": "Windows", "flwr": "1.4.0"}
    monkeypatch.setattr(about, "flower_facts", lambda: {**facts, **changed})
    monkeypatch.setattr(listings, "find_spec", lambda name: None)
    monkeypatch.setenv("FEDSUITE_DATA", "/data/[red]")
    table, mend_first = doctor_report()
    found = {row[0]: row[1:] for row in rows(table)}
    wanted = "for what needs it: pip install 'flwr[simulation]'"
    assert found["ray"] == ["–", wanted]
    assert found["onnx, onnxscript"][0] == "–"
    assert found["FEDSUITE_DATA"] == ["/data/[red]", ""]
    assert found["torch"] == ["missing", "install torch"]
    assert found["system"] == ["Windows", "untested: tests run on Linux"]
    assert found["flwr"] == ["1.4.0", "untested: tests run on 1.39, 1.41, 1.42"]
    missing = ["missing: flwr-clientapp", "install flwr into this environment"]
    assert found["Flower's programs"] == missing
    assert found["fedsuite"][0].startswith(f"{fedsuite.__version__}, in /")
    assert mend_first == "torch: install torch"


def test_a_node_without_extras_is_healthy(monkeypatch):
    from fedsuite.cli import listings

    monkeypatch.setattr(listings, "find_spec", lambda name: None)
    assert doctor_report()[1] == ""


def test_what_is_called_tested_is_what_constraints_pin():
    from fedsuite.engines.facts import TESTED

    pinned = {"flwr": set(), "torch": set()}
    for path in (Path(__file__).parents[2] / "constraints").glob("flwr-*.txt"):
        for line in path.read_text().splitlines():
            name, _, version = line.partition("==")
            if name in pinned:
                pinned[name].add(version.rpartition(".")[0])
    assert {name: set(TESTED[name]) for name in pinned} == pinned


def test_every_partitioner_has_its_keys_listed():
    names = {row[0] for row in rows(method_keys_table("fedavg", every=True))}
    assert {key.name for spec in PARTITIONERS.values() for key in spec.KEYS} <= names
