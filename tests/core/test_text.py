"""Files that people write, as Notepad, PowerShell and Windows' paths make them."""

import codecs
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.text import is_file_name, read_text, read_toml
from fedsuite.data.catalog import DATASETS
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.heart_disease import HOSPITALS, HeartDisease
from fedsuite.data.site_federation import rehearsal_sites
from fedsuite.deploy.folders import NodeFolder, init_federation
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.reader import load_run
from simulations.leaderboard.page import read_table
from simulations.leaderboard.scores import Final
from simulations.leaderboard.suite import read_suite
from tests.results.made_runs import make_run

MARK = codecs.BOM_UTF8
BACKSLASH = r"in double quotes a backslash begins an escape; write a path in '\.\.\.'"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(MARK + b'dataset = "digits"\r\nseed = 3\r\n')
    assert read_text(file) == 'dataset = "digits"\r\nseed = 3\r\n'
    assert Experiment.load(file)["seed"] == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes("seed = 3\n".encode(encoding))
    with pytest.raises(ConfigError, match=r"e\.toml .*: it is UTF-16: save it as UTF-8$"):
        Experiment.load(file)


def test_a_letter_of_an_old_code_page_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(b"seed = 3\n# K\xfcche\n")
    with pytest.raises(ConfigError, match=r"it is not UTF-8, see line 2: save it as UTF-8"):
        Experiment.load(file)


@pytest.mark.parametrize("path", [r"C:\Users\eva", r"D:\data", r"\\server\share\x"])
def test_a_path_of_windows_in_double_quotes(path: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f'seed = 3\ndata-dir = "{path}"\n')
    with pytest.raises(ConfigError, match=rf"line 2.*{BACKSLASH}") as refused:
        Experiment.load(file)
    assert "\n" not in str(refused.value)
    file.write_text(f"data-dir = '{path}'\n")
    assert Experiment.load(file)["data-dir"] == path


@pytest.mark.parametrize("path", [r"C:\temp", r"C:\new", r"E:\results", r"C:\back"])
def test_a_path_that_is_valid_and_means_something_else(path: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f'data-dir = "{path}"\n')
    with pytest.raises(ConfigError, match=rf"key data-dir = .*{BACKSLASH}"):
        Experiment.load(file)


def test_another_mistake_is_not_blamed_on_a_backslash(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("data-dir = 'C:\\Users'\nseed = \n")
    with pytest.raises(ValueError) as refused:
        read_toml(file)
    assert "backslash" not in str(refused.value)


def test_every_reader_of_people_s_toml(tmp_path: Path) -> None:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a"])
    node = tmp_path / "fed" / "nodes" / "a" / "node.toml"
    node.write_bytes(MARK + node.read_bytes())
    assert NodeFolder.load(node.parent).name == "a"
    node.write_bytes(node.read_bytes() + b'data = "C:\\temp"\n')
    with pytest.raises(ConfigError, match=BACKSLASH):
        NodeFolder.load(node.parent)

    site = tmp_path / "sites" / "a" / "site.toml"
    site.parent.mkdir(parents=True)
    site.write_bytes(MARK + b'label-column = "died"\n')
    assert rehearsal_sites(tmp_path / "sites", ["a"])[0].label_column == "died"
    site.write_bytes(b'label-column = "\\table"\n')
    with pytest.raises(ConfigError, match=f"label-column = .*{BACKSLASH}"):
        rehearsal_sites(tmp_path / "sites", ["a"])

    make_run(tmp_path / "run")
    kept = tmp_path / "run" / "experiment.toml"
    kept.write_bytes(MARK + kept.read_bytes())
    assert load_run(tmp_path / "run").experiment["method"]

    suite = tmp_path / "suite.toml"
    suite.write_bytes(MARK + b"[methods.fedavg]\n")
    with pytest.raises(ConfigError, match="must be there: add it as a row"):
        read_suite(suite)


def test_tables_that_were_saved_by_a_spreadsheet(tmp_path: Path) -> None:
    table = tmp_path / "finals.csv"
    table.write_bytes(MARK + b"problem,other\n")
    assert read_table(table, Final) == []
    # The mark would be a part of the first column's name.
    folder = tmp_path / "heart_disease"
    folder.mkdir()
    for name in HOSPITALS:
        (folder / f"{name}.csv").write_bytes(MARK + b"age,sex\n60,1\n")
    with pytest.raises(DataError, match=r"no column .*; it has age, sex"):
        HeartDisease().load(DATASETS["heart-disease"], tmp_path)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        *((name, True) for name in ("a", "ward-a", "a.b_c", "console", "com10", "nul-1")),
        *((name, False) for name in ("", "CON", "nul.txt", "Com1", "lpt9.a.b", "aux")),
        *((name, False) for name in ("a.", ".a", "-a", "a b", "a/b", "a\n", "ä", "a" * 64)),
    ],
)
def test_a_name_is_a_file_s_on_every_system(name: str, good: bool) -> None:
    assert is_file_name(name, 63) == good


def test_no_run_site_or_node_has_the_name_of_a_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run-name = 'nul\.txt'"):
        Experiment.from_values({"run-name": "nul.txt"})
    with pytest.raises(ConfigError, match="name 'CON'"):
        _ = DataSettings.of({"sites": "a, CON"}).site_names
    with pytest.raises(ConfigError, match="node 'aux'"):
        init_federation(tmp_path / "fed", ["127.0.0.1"], ["aux"])
