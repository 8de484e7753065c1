"""The readers of files and messages from elsewhere, each with a whole input."""

import json
import os
import re
import shutil
import socket
import sqlite3
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import flwr
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from PIL import Image

from fedsuite.callbacks.best_model import BEST_MODEL
from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.files import safetensors_bytes
from fedsuite.core.reading import read_bytes
from fedsuite.data import DATASETS
from fedsuite.data.cache import load_or_build
from fedsuite.data.diabetes130 import Diabetes130
from fedsuite.data.parquet import decode_files, find_files, load_images
from fedsuite.data.schema import TableSchema
from fedsuite.data.site import Site
from fedsuite.data.site_federation import rehearsal_sites
from fedsuite.data.site_loading import load_site_rows
from fedsuite.data.site_statistics import federated_spec, parsed, statistics_lines
from fedsuite.deploy.certificates import make_node_key
from fedsuite.deploy.clocks import clock_trouble
from fedsuite.deploy.folders import (
    NODES,
    PARTNERS_FILE,
    NodeFolder,
    SuperLinkFolder,
    init_federation,
)
from fedsuite.deploy.preloaded.superexec import hear
from fedsuite.deploy.programs import (
    DATABASE,
    REGISTERED,
    TAKEN_OUT,
    _read_texts,
    entries_told,
    node_numbers,
)
from fedsuite.deploy.relay.audit import audit
from fedsuite.deploy.relay.ledger import REPLY, STARTED, Ledger, read_chain
from fedsuite.deploy.relay.policy import Policy, default_text
from fedsuite.deploy.validity import renew, valid_until
from fedsuite.devices.shipped import WORLDS
from fedsuite.devices.world import World, content_of
from fedsuite.engines.apps.project import Project, opened
from fedsuite.engines.flower import parse_outcome
from fedsuite.engines.trained.inputs import model_inputs
from fedsuite.engines.trained.network import _final_arrays
from fedsuite.experiment.experiment import Experiment, read_file
from fedsuite.results import layout
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import load_run
from fedsuite.results.summary import _best_model
from fedsuite.rounds.checkpoint import load_latest
from fedsuite.rounds.release_ledger import ReleaseLedger
from fedsuite.running.initial_model import start_from
from fedsuite.running.site_tables import keep, told_before
from fedsuite.sweeps.points import BASE, shared_values
from fedsuite.training.secure_client import NODE_KEY_VARIABLE, _signature
from fedsuite.training.store import FileStore
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.node_tasks import AppCalls, NodeTask, UnreadableError
from fedsuite.workarounds.packed import unpack_reply
from fedsuite.workarounds.state_database import _REVISIONS, fold, refuse_newer
from tests.data import hospital_files, parquet_files, reddit_files, test_tcga_brca
from tests.disasters.relayed import calls_of
from tests.readers.harness import Target
from tests.rounds.test_checkpoint import example

SCHEMA = TableSchema(
    ("age", "sex", "bp"), "died", ("no", "yes"), categories={"sex": ("01", "02")}
)
ROWS: Mapping[str, Any] = {
    "age": list(range(20)),
    "sex": ["01", "02"] * 10,
    "bp": np.linspace(90.5, 160.25, 20),
    "died": ["no", "yes"] * 10,
    "label": [0, 1] * 10,
}
ROUNDS = [{"round": k, "accuracy": 0.5 + k / 10, "loss": 1.0 / (k + 1)} for k in range(3)]


def _toml(name: str, values: Mapping[str, Any]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(tomli_w.dumps(dict(values)))


def _json(name: str, value: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(value))


def _text(path: Path) -> str:
    """Return the text of a message, which is no file; empty where a wound took it."""
    plain = path.is_file() and path.stat().st_size < 10**7
    return path.read_bytes().decode(errors="replace") if plain else ""


# ----------------------------------------------------------------- what people write

EXPERIMENT = {"method": "fedavg", "dataset": "digits", "num-rounds": 3, "model": "linear"}


def _experiment(folder: Path) -> None:
    values = read_file(folder / "experiment.toml")
    Experiment.from_values(values)


def _sweep(folder: Path) -> None:
    shared_values(folder, EXPERIMENT)


def _world(folder: Path) -> None:
    text = WORLDS["phones"] if "phones" in WORLDS else next(iter(WORLDS.values()))
    (folder / "world.toml").write_text(text)
    table = {
        "availability": {"own": {"kind": "table", "file": "table.csv"}},
        "profiles": {
            "a": {
                "multiplications-per-second": [1e6, 2e6],
                "up-mbit": 8,
                "down-mbit": 16,
                "availability": "own",
                "share": 0.5,
            },
            "b": {
                "multiplications-per-second": 1e6,
                "up-mbit": 8,
                "down-mbit": 16,
                "clients": [3, "hospital-b"],
            },
        },
    }
    (folder / "table.toml").write_text(tomli_w.dumps(table))
    (folder / "table.csv").write_text("client,from,to\n1,0,60\nhospital-b,30,90.5\n")


def _read_world(folder: Path) -> None:
    for name in ("world.toml", "table.toml"):
        world = World(content_of(str(folder / name)), 0, {1: "hospital-b"}, 10)
        for client_id in range(10):
            world.device(client_id)


def _read_world_as_json(folder: Path) -> None:
    World(_text(folder / "world.json"), 0, {1: "hospital-b"}, 10).device(1)


def _world_as_json(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        _world(Path(name))
        (folder / "world.json").write_text(content_of(f"{name}/table.toml"))


def _project(folder: Path) -> None:
    from tests.engines.test_simulate import PROJECT

    (folder / "pyproject.toml").write_text(PROJECT)


def _bundle(folder: Path) -> None:
    with zipfile.ZipFile(folder / "app.fab", "w", zipfile.ZIP_DEFLATED) as bundle:
        with tempfile.TemporaryDirectory() as name:
            _project(Path(name))
            bundle.write(f"{name}/pyproject.toml", "pyproject.toml")
        bundle.writestr("small/__init__.py", "")


def _read_bundle(folder: Path) -> None:
    with opened(folder / "app.fab") as app:
        Project.read(app)


def _schema(folder: Path) -> None:
    (folder / "schema.json").write_text(SCHEMA.to_json())
    told = {"columns": ["age", "bp[3]"], "target": "died", "num-classes": 2, "tokens": 0}
    told |= {"categories": {"age": ["old", "1"]}, "missing": "mean", "id-column": "who"}
    (folder / "schema.toml").write_text(tomli_w.dumps(told))


def _read_schema(folder: Path) -> None:
    TableSchema.load(folder / "schema.json")
    TableSchema.load(folder / "schema.toml")


# ----------------------------------------------------------------- federations


@cache
def _federation() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fedsuite-readers-")) / "federation"
    text = default_text()
    init_federation(folder, ("fed.example.org",), ("a", "b"), policy=text, days=3000)
    keys = [(folder / NODES / name / "key.pub").read_text() for name in ("a", "b")]
    (folder / NODES / "a" / PARTNERS_FILE).write_text("# partners\n" + "".join(keys))
    return folder


def _part(*names: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        for name in names:
            shutil.copytree(_federation() / name, folder / Path(name).name)

    return make


def _renew(folder: Path) -> None:
    link = SuperLinkFolder("", ("h",), 1, 1, ("a",))
    link = SuperLinkFolder(folder / "superlink", *list(vars(link).values())[1:])
    renew(link, 30, folder / "authority")
    valid_until(link.path / "server.pem")


def _clock(folder: Path) -> None:
    node = NodeFolder.load(folder / "a")
    if "127.0.0.1" in node.superlink:
        clock_trouble(node)


def _node(folder: Path) -> None:
    _part("nodes/a")(folder)
    file = folder / "a" / "node.toml"
    file.write_text(file.read_text().replace("fed.example.org:8443", "127.0.0.1:9"))


def _numbers(folder: Path) -> None:
    for name, number in node_numbers(SuperLinkFolder(folder, (), 1, 1, ("a",))).items():
        assert isinstance(name, str) and isinstance(number, str)


def _names_taken_out(folder: Path) -> None:
    for number, name in _read_texts(folder / TAKEN_OUT).items():
        assert isinstance(number, str) and isinstance(name, str)


def _database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as line, line:
        line.execute("create table alembic_version (version_num text)")
        files = (Path(flwr.__file__).parent / _REVISIONS).glob("*.py")
        (revision, *_) = re.findall(r'^revision.* = "(\w+)"', next(files).read_text(), re.M)
        line.execute("insert into alembic_version values (?)", (revision,))


def _open_database(folder: Path) -> None:
    fold(folder / DATABASE)
    refuse_newer(folder / DATABASE)


def _ledger(folder: Path) -> None:
    with Ledger(folder / "ledger.jsonl") as ledger:
        ledger.write(STARTED, server="fed:1", policy="ab")
        for number in range(3):
            ledger.write(
                *(REPLY,),
                **{
                    "reply": f"r{number}",
                    "run": "7",
                    "bytes": 100 * number,
                    "type": "train",
                },
                **{
                    "records": {"arrays": {"w": ["<f4", [2, 3], "ab"]}, "metrics": {"x": 1}}
                },
                **{"noise-multiplier": 1.0, "app": "sha", "app-name": "n", "round": 1},
            )


def _read_ledger(folder: Path) -> None:
    chain = read_chain(folder / "ledger.jsonl")
    read = audit("a", chain)
    read.csv()


def _open_ledger(folder: Path) -> None:
    Ledger(folder / "ledger.jsonl").close()


def _chained(folder: Path) -> None:
    """Read lines that anybody wrote, with a right chain: a site's own operator may."""
    from fedsuite.deploy.relay.ledger import Chain

    lines = []
    for line in _text(folder / "ledger.jsonl").splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        lines.append(value if isinstance(value, dict) else {})
    audit("a", Chain(tuple(lines), "", 0, 0)).csv()


def _key(folder: Path) -> None:
    (folder / "key").write_bytes(make_node_key("a").private)


def _sign(folder: Path) -> None:
    before = os.environ.get(NODE_KEY_VARIABLE)
    os.environ[NODE_KEY_VARIABLE] = str(folder / "key")
    try:
        _signature(b"words")
    finally:
        del os.environ[NODE_KEY_VARIABLE]
        if before is not None:
            os.environ[NODE_KEY_VARIABLE] = before


RUNS = {"runs": [{"run-id": "7", "status": "finished:completed", "status-details": "ok"}]}


def _hear(folder: Path) -> None:
    path = folder / "words"
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.setblocking(False)
            if path.is_file() and path.stat().st_size < 10**7:
                with suppress(BlockingIOError):
                    ours.sendall(path.read_bytes())
        words = hear(theirs)
    assert words is None or all(isinstance(word, str) for word in words)


# ----------------------------------------------------------------- data


def _table(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        for part in ("train", "test"):
            if name.endswith("parquet"):
                pq.write_table(pa.table(dict(ROWS)), folder / f"{part}-0.parquet")
            else:
                names = list(ROWS)
                lines = zip(*ROWS.values(), strict=True)
                text = "".join(",".join(map(str, line)) + "\n" for line in lines)
                (folder / f"{part}-0.csv").write_text(",".join(names) + "\n" + text)

    return make


def _by_schema(folder: Path) -> None:
    spec = federated_spec({"dataset": "own-table", "schema": SCHEMA.to_json()})
    load_site_rows(Site("north", folder, schema=SCHEMA), spec, 0.25)


def _by_name(folder: Path) -> None:
    spec = federated_spec({"dataset": "own-table", "table-columns": 2})
    site = Site("north", folder, feature_columns=("age", "bp"), label_column="label")
    load_site_rows(site, spec, 0.25)


def _by_kind(folder: Path) -> None:
    spec = federated_spec({"dataset": "own-table", "table-columns": 3})
    load_site_rows(Site("north", folder, label_column="label"), spec, 0.25)


def _columns(folder: Path) -> None:
    rows = {"a": np.arange(20.0), "b": [[1.0, 2.0]] * 20, "label": [0, 1] * 10}
    pq.write_table(pa.table(rows), folder / "rows.parquet")


def _site_settings(folder: Path) -> None:
    (folder / "north").mkdir()
    _columns(folder / "north")
    (folder / "north" / "schema.json").write_text(SCHEMA.to_json())
    settings = {"schema": "schema.json", "least-rows": 3, "label-column": "label"}
    (folder / "north" / "site.toml").write_text(tomli_w.dumps(settings))


def _pictures(folder: Path) -> None:
    for place, name in enumerate(("cat", "dog")):
        (folder / name).mkdir()
        for number in range(3):
            pixels = np.full((8, 8), 40 * number + place, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def _read_pictures(folder: Path) -> None:
    keys = {"dataset": "own-pictures", "picture-classes": "cat, dog"}
    spec = federated_spec(keys | {"picture-size": 8, "picture-channels": 1})
    load_site_rows(Site("north", folder), spec, 0.5)


IMAGES = DATASETS["fashion-mnist"]


def _read_images(folder: Path) -> None:
    decode_files(IMAGES, find_files(IMAGES, folder / IMAGES.folder))


def _read_public(folder: Path) -> None:
    before = os.environ.get("FEDSUITE_CACHE")
    with tempfile.TemporaryDirectory() as name:
        os.environ["FEDSUITE_CACHE"] = name
        try:
            load_images(IMAGES, folder / IMAGES.folder)
        finally:
            del os.environ["FEDSUITE_CACHE"]
            if before is not None:
                os.environ["FEDSUITE_CACHE"] = before


def _source(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        spec = DATASETS[name]
        before = os.environ.get("FEDSUITE_CACHE")
        with tempfile.TemporaryDirectory() as cache_folder:
            os.environ["FEDSUITE_CACHE"] = cache_folder
            try:
                spec.source().load(spec, folder)
            finally:
                del os.environ["FEDSUITE_CACHE"]
                if before is not None:
                    os.environ["FEDSUITE_CACHE"] = before

    return read


def _diabetes(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        rows = [
            hospital_files.encounter(patient_nbr=k, number_inpatient=k) for k in range(8)
        ]
        hospital_files.write_diabetes(folder, rows, name)

    return make


def _read_diabetes(folder: Path) -> None:
    Diabetes130().load(DATASETS["diabetes130"], folder)


def _arrays() -> dict[str, np.ndarray]:
    return {"features": np.arange(12.0).reshape(3, 4), "labels": np.arange(3)}


def _make_cache(folder: Path) -> None:
    _with_cache(folder, lambda: load_or_build("entry", _arrays))


def _read_cache(folder: Path) -> None:
    def read() -> None:
        arrays = load_or_build("entry", _arrays)
        for name, array in _arrays().items():
            assert np.array_equal(arrays[name], array)

    _with_cache(folder, read)


def _with_cache(folder: Path, work: Callable[[], object]) -> None:
    before = os.environ.get("FEDSUITE_CACHE")
    os.environ["FEDSUITE_CACHE"] = str(folder)
    try:
        work()
    finally:
        del os.environ["FEDSUITE_CACHE"]
        if before is not None:
            os.environ["FEDSUITE_CACHE"] = before


STATISTICS = {
    "rows": 40,
    "columns": {"age": {"range": [0.0, 90.0], "missing": 0}, "sex": {"rows": 40}},
    "classes": {"no": 20, "yes": "fewer than 5"},
}


def _read_statistics(folder: Path) -> None:
    told = parsed(_text(folder / "told.json"))
    for line in statistics_lines({"north": told, "south": STATISTICS}):
        assert isinstance(line, str)


def _scaling(folder: Path) -> None:
    keep(ColumnScaling("federated", (1.0, 2.0), (1.0, 0.5)), folder)


# ----------------------------------------------------------------- runs


def _checkpoints(folder: Path) -> None:
    example(6).save(folder)
    example(7).save(folder)


def _read_checkpoints(folder: Path) -> None:
    load_latest(folder, "print")


def _releases(folder: Path) -> None:
    ledger = ReleaseLedger(folder / "privacy.ledger")
    for number in range(3):
        ledger.add(0, {"sentence": f"s{number}", "round": number})


def _read_releases(folder: Path) -> None:
    ReleaseLedger(folder / "privacy.ledger")
    layout.read_releases(folder)


def _run(folder: Path) -> None:
    experiment = Experiment.from_values(EXPERIMENT)
    (folder / layout.EXPERIMENT).write_text(experiment.to_toml())
    manifest = {"format": layout.FORMAT, "status": "finished", "num_clients": 3}
    (folder / layout.MANIFEST).write_text(json.dumps({**manifest, "attempt": 1}))
    clients = [
        {"round": k, "phase": "evaluate", "client": c, "accuracy": 0.5, "num-examples": 9}
        for k in range(3)
        for c in range(3)
    ]
    events = [{"round": 1, "client": 2, "kind": "rejected", "cause": "late"}]
    for name, rows in (("rounds", ROUNDS), ("clients", clients), ("events", events)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


def _read_run(folder: Path) -> None:
    run = load_run(folder)
    run.column("accuracy")
    deque(run.client_rows(), maxlen=0)
    deque(run.events(), maxlen=0)


FACTS = ModelFacts(
    "own-table",
    (2,),
    False,
    ("no", "yes"),
    ("age", "bp"),
    column_scaling=ColumnScaling("federated", (1.0, 2.0), (1.0, 0.5)),
)
PICTURES = ModelFacts(
    "digits", (1, 8, 8), False, ("0", "1"), max_value=255, mean=(0.5,), std=(0.5,)
)


def _model(name: str, note: str = "") -> Callable[[Path], object]:
    arrays = {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)}
    return lambda folder: (folder / name).write_bytes(safetensors_bytes(arrays, note))


@cache
def _resolved(folder: Path) -> Experiment:
    return Experiment.from_values(EXPERIMENT | {"initial-model": str(folder)})


def _initial_model(folder: Path) -> None:
    drawn = {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)}
    start_from(_resolved(folder), drawn, {})


def _state(folder: Path) -> None:
    FileStore(folder).write(3, "7.1", {"w": np.arange(6.0), "n": np.array(3)})


def _inputs(folder: Path) -> None:
    pq.write_table(pa.table({k: ROWS[k] for k in ("age", "bp")}), folder / "rows.parquet")
    (folder / "rows.csv").write_text("age,bp\n1,2\n3,4.5\n")
    np.save(folder / "rows.npy", np.zeros((3, 2), np.float32))
    Image.fromarray(np.full((8, 8), 40, np.uint8)).save(folder / "picture.png")


def _read_inputs(kind: str, facts: ModelFacts) -> Callable[[Path], object]:
    return lambda folder: model_inputs(folder / f"rows.{kind}", facts, lambda _: None)


def _only(kind: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        _inputs(folder)
        for path in folder.iterdir():
            if path.suffix != f".{kind}":
                path.unlink()

    return make


# ----------------------------------------------------------------- messages


def _packed(folder: Path) -> None:
    (folder / "packed.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    layout_of = {"names": ["w"], "dtypes": ["float32"], "shapes": ["2,3"]}
    (folder / "layout.json").write_text(json.dumps(layout_of))


def _read_packed(folder: Path) -> None:
    try:
        told = json.loads(_text(folder / "layout.json"))
        config = ConfigRecord(told)
    except (ValueError, TypeError, RecursionError, AttributeError):
        return
    data = _text(folder / "packed.bin").encode("latin-1", "replace")
    record = ArrayRecord()
    record["packed"] = Array("uint8", (len(data),), "numpy.ndarray", data)
    unpack_reply(RecordDict({"arrays": record, "arrays.layout": config}))


def _app_calls(folder: Path) -> None:
    with flower_identity():
        question = Message(RecordDict(), 1, "train", group_id="1")
        for number, (name, body) in enumerate(calls_of("honest", question)):
            (folder / f"{number}.{name}").write_bytes(bytes.fromhex(body))


def _read_app_calls(folder: Path) -> None:
    calls = AppCalls(cast(NodeTask, SimpleNamespace(objects={}, input=None)), 2**20)
    for path in sorted(folder.iterdir()):
        # The relay takes whatever it raises for a call that no app may make.
        with suppress(Exception):
            body = read_bytes(path, 10**7)
            calls.answer(f"/v1/runtime{path.suffix.replace('.', '/')}", body)
    with suppress(UnreadableError):
        calls.reply()


TABLES = 2**29
"""Memory that a table may cost: Parquet may be far smaller than what it holds."""

HEADERS = 2**28
"""Memory that a file of arrays may cost: a header of 100 MB, and its text."""

TARGETS: Mapping[str, Target] = {
    "experiment": Target(_toml("experiment.toml", EXPERIMENT), _experiment),
    "sweep": Target(_toml(BASE, EXPERIMENT), _sweep),
    "world": Target(_world, _read_world),
    "world-as-json": Target(_world_as_json, _read_world_as_json),
    "project": Target(_project, Project.read),
    "bundle": Target(_bundle, _read_bundle, 2**29),
    "schema": Target(_schema, _read_schema),
    "superlink": Target(
        _part("superlink"), lambda folder: SuperLinkFolder.load(folder / "superlink")
    ),
    "node": Target(_node, _clock),
    "policy": Target(
        lambda folder: (folder / "policy.toml").write_text(default_text()),
        lambda folder: Policy.load(folder / "policy.toml"),
    ),
    "certificates": Target(_part("superlink", "authority"), _renew),
    "registered": Target(
        _json(REGISTERED, {"a": {"node-id": "1", "key": "k a"}}), _numbers
    ),
    "taken-out": Target(_json(TAKEN_OUT, {"1": "a", "27": "b"}), _names_taken_out),
    "state-database": Target(_database, _open_database),
    "site-ledger": Target(_ledger, _read_ledger),
    "own-ledger": Target(_ledger, _open_ledger),
    "chained-ledger": Target(_ledger, _chained),
    "node-key": Target(_key, _sign),
    "flwr-list": Target(
        _json("runs.json", RUNS),
        lambda folder: entries_told(_text(folder / "runs.json"), "runs"),
    ),
    "flwr-outcome": Target(
        _json("runs.json", RUNS), lambda folder: parse_outcome(_text(folder / "runs.json"))
    ),
    "command-line": Target(
        lambda folder: (folder / "words").write_bytes(b"flwr-clientapp\0--token\0x"), _hear
    ),
    "table-parquet": Target(_table("parquet"), _by_schema, TABLES),
    "table-csv": Target(_table("csv"), _by_schema, TABLES),
    "columns-csv": Target(_table("csv"), _by_name, TABLES),
    "columns-parquet": Target(_columns, _by_kind, TABLES),
    "site-settings": Target(
        _site_settings, lambda folder: rehearsal_sites(folder, ["north"])
    ),
    "pictures": Target(_pictures, _read_pictures, TABLES),
    "images": Target(
        lambda folder: parquet_files.write_dataset(IMAGES, folder), _read_images, TABLES
    ),
    "public-images": Target(
        lambda folder: parquet_files.write_dataset(IMAGES, folder), _read_public, TABLES
    ),
    "diabetes": Target(_diabetes("diabetic_data.parquet"), _read_diabetes, TABLES),
    "diabetes-csv": Target(_diabetes("diabetic_data.csv"), _read_diabetes, TABLES),
    "heart": Target(hospital_files.write_hearts, _source("heart-disease")),
    "tcga": Target(test_tcga_brca.write, _source("tcga-brca")),
    "reddit": Target(reddit_files.write_users, _source("reddit")),
    "cache": Target(_make_cache, _read_cache),
    "statistics": Target(_json("told.json", STATISTICS), _read_statistics),
    "scaling": Target(_scaling, told_before),
    "checkpoint": Target(_checkpoints, _read_checkpoints, HEADERS),
    "releases": Target(_releases, _read_releases),
    "run": Target(_run, _read_run),
    "model-facts": Target(_json(layout.MODEL_FACTS, FACTS.as_json()), ModelFacts.read),
    "best-model": Target(
        _model(BEST_MODEL, json.dumps({"round": 1, "metric": "a", "value": 0.5})),
        _best_model,
        HEADERS,
    ),
    "final-model": Target(
        _model(layout.MODEL),
        lambda folder: _final_arrays(folder, Experiment.from_values(EXPERIMENT)),
        HEADERS,
    ),
    "initial-model": Target(_model(layout.MODEL), _initial_model, HEADERS),
    "client-state": Target(
        _state, lambda folder: FileStore(folder).load(3, "7.1"), HEADERS
    ),
    "inputs-parquet": Target(_only("parquet"), _read_inputs("parquet", FACTS), TABLES),
    "inputs-csv": Target(_only("csv"), _read_inputs("csv", FACTS), TABLES),
    "inputs-npy": Target(_only("npy"), _read_inputs("npy", FACTS)),
    "inputs-pictures": Target(
        _only("png"), lambda folder: model_inputs(folder, PICTURES, lambda _: None), TABLES
    ),
    "packed": Target(_packed, _read_packed),
    "app-calls": Target(_app_calls, _read_app_calls),
}
