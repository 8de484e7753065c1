"""``fedsuite deploy`` with tables: the schema handed out, the check, the statistics."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedsuite.cli import app
from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data.schema import TableSchema
from fedsuite.data.site import site_from_config
from fedsuite.deploy import rehearsal
from fedsuite.deploy.folders import NodeFolder, init_federation

RUNNER = CliRunner()
SCHEMA = 'columns = "age, bp"\ntarget = "ill"\nclasses = ["no", "yes"]\n'
EXPERIMENT = (
    'dataset = "own-table"\nschema = "SCHEMA"\nmodel = "linear"\nsites = "north, south"\n'
)


def write_rows(folder: Path, **change: Any) -> Path:
    folder.mkdir(parents=True)
    columns = {"age": range(60), "bp": range(100, 160), "ill": ["no", "yes"] * 30}
    pd.DataFrame({**columns, **change}).to_csv(folder / "rows.csv", index=False)
    return folder


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    text = EXPERIMENT.replace("SCHEMA", str(tmp_path / "schema.toml"))
    (tmp_path / "table.toml").write_text(text)
    folder = tmp_path / "federation"
    schema = tmp_path / "schema.toml"
    init_federation(folder, ["127.0.0.1"], ["north", "south"], schema=schema)
    return folder


def test_each_node_gets_the_schema_wherever_its_folder_goes(
    federation: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    (federation / "nodes" / "south").rename(moved)
    node = NodeFolder.load(moved)
    site = site_from_config({**node.config, "data": "/srv/south"})
    assert site.schema == TableSchema.parse(SCHEMA)
    (tmp_path / "schema.toml").write_text('columns = "age"\ntarget = "age"\n')
    with pytest.raises(ConfigError, match="column 'age' stands there twice"):
        init_federation(
            tmp_path / "two", ["127.0.0.1"], ["a"], schema=tmp_path / "schema.toml"
        )
    assert not (tmp_path / "two").exists()


def test_an_operator_checks_the_data_before_any_run(
    federation: Path, tmp_path: Path
) -> None:
    node = federation / "nodes" / "north"
    with (node / "node.toml").open("a") as file:
        print(f'data = "{write_rows(tmp_path / "rows")}"', file=file)
    result = RUNNER.invoke(app, ["deploy", "check", str(node)])
    assert result.exit_code == 0, result.output
    assert "48 training rows and 12 test rows" in result.output
    (tmp_path / "rows" / "rows.csv").unlink()
    (tmp_path / "rows").rmdir()
    write_rows(tmp_path / "rows", age="old", ill="perhaps")
    result = RUNNER.invoke(app, ["deploy", "check", str(node)])
    assert isinstance(result.exception, DataError)
    assert "2 faults: (1) " in str(result.exception)


def test_statistics_of_a_rehearsal(federation: Path, tmp_path: Path) -> None:
    for name in ("north", "south"):
        write_rows(tmp_path / "at" / name)
    words = ["deploy", "statistics", str(tmp_path / "table.toml")]
    result = RUNNER.invoke(app, [*words, "--set", f"site-dirs={tmp_path / 'at'}"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "training rows: north 48; south 48"
    assert "class yes: north 24; south 24" in lines
    assert any(line.startswith("column bp: north 1") for line in lines)
    result = RUNNER.invoke(app, words)
    assert isinstance(result.exception, ConfigError)
    assert "--superlink" in str(result.exception)


def test_statistics_of_a_federation_send_the_schema_and_no_path(
    federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(rehearsal, "submit", lambda *words: given.append(words))
    words = ["deploy", "statistics", str(tmp_path / "table.toml")]
    result = RUNNER.invoke(app, [*words, "--superlink", str(federation / "superlink")])
    assert result.exit_code == 0, result.output
    ((_, values, _, _),) = given
    assert values["only-statistics"] is True
    assert TableSchema.parse(values["schema"]) == TableSchema.parse(SCHEMA)
