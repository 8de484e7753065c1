"""Experiments with what other packages add: keys, table of Flower, recorded versions."""

from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys, table_default
from fedsuite.experiment.plug_ins import fingerprint
from fedsuite.running.server import refuse_flowers_table
from tests.core.test_plug_ins import PROX, methods
from tests.experiment.config_table import render
from tests.plug_ins.fakes import example, installed, write_package

ADDED = {"method": "anchored", "model": "two-layers", "dataset": "stripes"}


def test_a_methods_fields_are_keys(tmp_path: Path) -> None:
    with example(tmp_path):
        given = Experiment.from_values({**ADDED, "anchored-way": 0.25})
        assert given["anchored-way"] == 0.25
        assert given.fingerprint != Experiment.from_values(ADDED).fingerprint
        with pytest.raises(ConfigError, match=r"anchored-way = 2.0: expected a number"):
            Experiment.from_values({**ADDED, "anchored-way": 2.0})
        with pytest.raises(ConfigError, match="it belongs to method anchored"):
            Experiment.from_values({"anchored-way": 0.25})
    with pytest.raises(ConfigError, match="unknown key 'anchored-way'"):
        Experiment.from_values({"anchored-way": 0.25})


def test_the_code_of_packages_has_a_fingerprint(tmp_path: Path) -> None:
    with example(tmp_path / "one"):
        assert fingerprint(Experiment.from_values({}).values) == ""
        found = fingerprint(Experiment.from_values({"method": "anchored"}).values)
    assert found.startswith("fedsuite-example 0.1.0 (")
    for folder, source in (("near", PROX), ("nearer", PROX.replace("0.5", "0.6"))):
        near = methods(near="near_module:Near")
        write_package(tmp_path / folder, "near", near, {"near_module": source})
    told = set()
    for folder in ("near", "nearer"):
        with installed(tmp_path / folder):
            told.add(fingerprint(Experiment.from_values({"method": "near"}).values))
    assert len(told) == 2


def test_a_program_of_ones_own_names_its_classes() -> None:
    assert fingerprint(Experiment.from_values({"model": "__main__:Net"}).values)


def whole_table() -> dict[str, object]:
    """Return what Flower's own command sends: each key of the app's table."""
    return {name: table_default(name) for name in known_keys() if "anchored" not in name}


def test_flowers_table_is_of_fedsuite_alone(tmp_path: Path) -> None:
    table = render()
    # The second changes the default of a key of ours, the third cannot be imported.
    near = methods(near="near_module:Near")
    write_package(tmp_path / "near", "near", near, {"near_module": PROX})
    broken = methods(broken="no_such_module:Near")
    write_package(tmp_path / "broken", "broken", broken)
    with example(tmp_path / "one"), installed(tmp_path / "near", tmp_path / "broken"):
        assert render() == table
        sent = whole_table()
        assert sent["proximal-mu"] == 0.01
        assert Experiment.from_values(sent)["method"] == "fedavg"
        assert Experiment.from_values({"method": "near"})["proximal-mu"] == 0.5
        for method in ("near", "anchored"):
            flowers = {**sent, "method": method}
            with pytest.raises(ConfigError, match=rf"'{method}' is of .*--engine ray"):
                refuse_flowers_table(Experiment.from_values(flowers), flowers)
        refuse_flowers_table(Experiment.from_values(sent), sent)
        staged = Experiment.from_values(ADDED)
        refuse_flowers_table(staged, staged.values)
