"""No node takes a path from a message: it reads and writes where its operator says."""

import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from typer.testing import CliRunner

from fedsuite.cli import app as command
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Value
from fedsuite.deploy import rehearsal
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys
from fedsuite.experiment.paths import path_keys, places, refuse_relative_paths
from fedsuite.messages.records import HELLO
from fedsuite.running.node import node_experiment
from fedsuite.running.node_app import _worker, app
from fedsuite.running.paths_at_home import PLACE, without_paths
from fedsuite.running.server import run_experiment
from fedsuite.workarounds.identity import flower_identity
from tests.small_runs import SMALL

NO_PATHS = {
    "best-model-metric": "name of a metric",
    "cfd-server-model": "name of a network",
    "client-column": "name of a column, where the rows are divided",
    "client-models": "names of networks",
    "client-settings": "names or numbers of clients, and numbers",
    "class-weights": "numbers",
    "interval-ends": "numbers",
    "scores": "names of scores",
    "columns": "names of columns, which a site compares with its own",
    "devices": "content of a file, of which no node opens one",
    "discriminator-widths": "numbers",
    "early-stop-metric": "name of a metric",
    "evaluation-only": "names or numbers of clients",
    "metrics-host": "address, on the server",
    "picture-classes": "names of classes",
    "run-name": "name that can hold no separator",
    "schema": "content of a file, of which no node opens one",
    "site-rows": "numbers",
    "sites": "names of nodes",
    "target": "name of a column, which a site compares with its own",
    "trackers": "names of modules, on the server",
    "travels": "names of arrays",
}
"""Keys of free text that name no file or folder, and what they name."""


def test_every_key_of_free_text_says_whether_it_is_a_path() -> None:
    """A new key of text is to be declared with ``path``, or to stand in the list above."""
    free, paths = set(), set()
    for name, known in known_keys().items():
        for key in known.declarations:
            if key.path is not None:
                paths.add(name)
                assert key.type is str and not key.choices
                assert key.local or name == "initial-model"
            elif key.type is str and not key.choices:
                free.add(name)
    assert free == set(NO_PATHS)
    assert paths == {key.name for key in path_keys()}
    folders = {"data-dir", "output-dir", "public-dir", "site-dirs", "state-dir"}
    assert paths == folders | {"initial-model"}


def test_a_run_s_name_leads_out_of_no_folder() -> None:
    for name in ("..", "../other", "a/b", "/srv", "."):
        with pytest.raises(ConfigError, match="key run-name"):
            node_experiment({"run-name": name}, {})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a node whose operator chose its folders."""
    folder = tmp_path / "node"
    for variable in ("DATA", "STATE", "CACHE"):
        (folder / variable.lower()).mkdir(parents=True)
        monkeypatch.setenv(f"FEDSUITE_{variable}", str(folder / variable.lower()))
    monkeypatch.delenv("FEDSUITE_PUBLIC", raising=False)
    monkeypatch.chdir(folder)
    _worker.cache_clear()
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[dict[str, Value], Path]:
    """Return a message's paths, and the folder of somebody else that all lead into."""
    folder = tmp_path / "hostile"
    (folder / "a").mkdir(parents=True)
    return {key.name: str(folder / "a") for key in path_keys()}, folder


def content(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("given", ["absolute", "relative", "home"])
def test_a_whole_run_writes_at_the_node_alone(
    given: str,
    node: Path,
    hostile: tuple[dict[str, Value], Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FedAKD's clients keep their models between rounds."""
    paths, folder = hostile
    monkeypatch.setenv("HOME", str(folder))
    text = {"absolute": str(folder / "a"), "relative": "../hostile/a", "home": "~/a"}[given]
    config = {**SMALL, **dict.fromkeys(paths, text), "method": "fedakd", "run-name": "r"}
    # Without public rows of its own the node refuses the folder of a message.
    del config["public-dir"]
    own = {key: value for key, value in config.items() if key not in paths}
    with flower_identity(), caplog.at_level(logging.WARNING):
        run_experiment(
            Experiment.from_values(own), LocalGrid(app, 2, config), folder.parent / "run"
        )
    states = content(node / "state" / "r")
    assert {path.suffix for path in states} == {".safetensors"}
    assert content(folder) == set()
    told = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(set(told)) == 1 and "\n" not in told[0]
    assert len(told) == 2  # once at each of two nodes
    first = "of initial-model, output-dir, state-dir, data-dir, site-dirs: this node's"
    assert first in told[0]
    assert "FEDSUITE_STATE" in told[0]


def answer(
    config: dict[str, Value], kind: str, content: RecordDict | None = None
) -> Message:
    content = content or RecordDict({"config": ConfigRecord()})
    with flower_identity():
        (reply,) = LocalGrid(app, 1, config).send_and_receive(
            [Message(content, 1000, kind)]
        )
    return reply


def test_data_comes_from_the_node_s_own_folder(
    node: Path, hostile: tuple[dict[str, Value], Path], caplog: pytest.LogCaptureFixture
) -> None:
    paths, folder = hostile
    (folder / "a" / "heart_disease").mkdir()
    config = {**paths, "dataset": "heart-disease", "model": "linear"}
    del config["public-dir"]
    reply = answer(config, "train")
    assert reply.has_error()
    reason = reply.error.reason
    assert f"no folder {PLACE}" in reason
    assert f"no folder {node / 'data' / 'heart_disease'}" in caplog.text
    assert str(folder.parent) not in reason


def test_public_data_come_from_the_node_s_own_folder(
    node: Path,
    hostile: tuple[dict[str, Value], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    paths, folder = hostile
    config = {**paths, "method": "fedmd-lf", "model": "linear"}
    reason = answer(config, HELLO).error.reason
    assert "set the environment variable FEDSUITE_PUBLIC" in reason
    monkeypatch.setenv("FEDSUITE_PUBLIC", str(node / "public"))
    _worker.cache_clear()
    reason = answer(config, HELLO).error.reason
    assert str(node / "public") in caplog.text
    assert PLACE in reason and str(folder.parent) not in reason


@pytest.mark.parametrize("hosted", [True, False])
def test_a_client_s_error_names_no_path_of_the_node(
    hosted: bool, node: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A message asks for a state that is not there, with an entry per client or without."""
    config: dict[str, Value] = {**SMALL, "method": "standalone", "run-name": "r"}
    del config["clients-per-round"]
    versions = {"start-versions": ["1.1"], "keep-versions": [""]}
    clients = {"client-ids": [0]} if hosted else {}
    request = RecordDict({"config": ConfigRecord({**versions, **clients})})
    reply = answer(config, "train", request)
    if hosted:
        reason = str(reply.content.config_records["client-0.error"]["reason"])
    else:
        reason = reply.error.reason
    assert f"state 1.1 cannot be read from {PLACE}" in reason
    assert str(node.parent) not in reason and str(node / "state" / "r") in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "state 1.2 lies in /s/r/3.x (gone): keep it",
            "state 1.2 lies in @ (gone): keep it",
        ),
        ("No space left on device: '/s p/q'", "No space left on device: @"),
        ("/srv/site a/x y.parquet: row 5", "@: row 5"),
        ("data/new rows.csv: row 5 of the data", "@: row 5 of the data"),
        (r"C:\x.txt, \\host\share, ~/a and ~b/c", "@, @, @ and @"),
        ("loss nan/inf, round 3/5, see deploy/README.md", ""),
        ("see https://flower.ai/docs/x", ""),
    ],
)
def test_what_is_a_path(text: str, told: str) -> None:
    said = without_paths(text, ["/srv/site a", "data"])
    assert said == (told.replace("@", PLACE) or text)


def test_site_dirs_make_no_rehearsal_of_a_node(
    node: Path, hostile: tuple[dict[str, Value], Path]
) -> None:
    paths, folder = hostile
    (folder / "a" / "b").mkdir()
    config = {**paths, "sites": "a, b", "model": "linear"}
    reply = answer({**config, "public-dir": "", "state-dir": "auto"}, HELLO)
    assert "this node names none: write data = " in reply.error.reason


def test_what_is_default_or_auto_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for config in ({}, {key.name: key.default for key in path_keys()}):
            assert not answer({**SMALL, **config}, HELLO).has_error()
    assert "passed over" not in caplog.text


class FakeRay(SimpleNamespace):
    """Ray in a process that is an actor, a driver, or has loaded it alone."""

    def __init__(self, *, initialised: bool, actor: str | None) -> None:
        context = SimpleNamespace(get_actor_id=lambda: actor)
        super().__init__(
            is_initialized=lambda: initialised, get_runtime_context=lambda: context
        )


@pytest.mark.parametrize(
    ("ray", "own"),
    [
        (None, False),
        (FakeRay(initialised=False, actor=None), False),
        # A site's adapter that uses Ray: its process is a driver.
        (FakeRay(initialised=True, actor=None), False),
        (FakeRay(initialised=True, actor="5f"), True),
    ],
)
def test_a_simulation_is_known_by_its_process(
    ray: FakeRay | None, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ray is None:
        monkeypatch.delitem(sys.modules, "ray", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "ray", ray)
    given = {"state-dir": "/s", "data-dir": "/d", "engine": "ray", "public-dir": "/p"}
    found = node_experiment(given, {"partition-id": 0, "simulation": True})
    assert found["state-dir"] == ("/s" if own else AUTO)
    assert found["data-dir"] == ("/d" if own else AUTO)
    assert found["public-dir"] == ("/p" if own else AUTO)


def test_whoever_starts_nodes_gives_them_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data-dir": "data", "state-dir": "auto", "public-dir": "", "site-dirs": "x"}
    assert places(given) == {"FEDSUITE_DATA": str(tmp_path / "data")}
    environments = []

    class Rehearsed:
        def __init__(self, *words: object, places: dict[str, str], **more: object) -> None:
            environments.append(places)

        def start(self) -> None: ...
        def run(self, *words: object) -> None: ...

    monkeypatch.setattr(rehearsal, "LocalFederation", Rehearsed)
    (tmp_path / "e.toml").write_text('model = "linear"\ndata-dir = "data"\n')
    result = CliRunner().invoke(command, ["deploy", "local", str(tmp_path / "e.toml")])
    assert result.exit_code == 0, result.output
    assert environments == [
        {
            "FEDSUITE_DATA": str(tmp_path / "data"),
            "FEDSUITE_RUNS": str(tmp_path / "runs"),
            "FEDSUITE_STATE": str(tmp_path / "runs" / ".state"),
        }
    ]


def test_relative_paths_are_refused_before_a_run_is_sent(tmp_path: Path) -> None:
    values = Experiment.from_values({"data-dir": "data"}).values
    with pytest.raises(ConfigError, match="key data-dir = 'data': expected an absolute"):
        refuse_relative_paths(values)
    values = Experiment.from_values({"sites": "a", "site-dirs": os.sep + "x"}).values
    with pytest.raises(ConfigError, match="key site-dirs rehearses in the local engine"):
        refuse_relative_paths(values)
