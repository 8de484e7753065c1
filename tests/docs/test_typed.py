"""What tests of pages may do: type what stands there, where nothing else is set."""

import re
from pathlib import Path

import pytest

from tests.docs.typed import Reader

TESTS = Path(__file__).parents[1]
PAGE = """
`sub/one.txt`:

```text
1
```

```console
cat sub/one.txt
export MINE=yes
echo "$MINE ${FEDSUITE_DATA:-unset} ${FLWR_HOME:-unset} ${PYTHONPATH:-unset}"
echo "run it: echo again"
exit 3
```
"""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    for name in ("FEDSUITE_DATA", "FLWR_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, "/somewhere")
    return Reader(PAGE, tmp_path)


def test_nothing_is_there_but_what_the_page_says(reader: Reader) -> None:
    assert not list(reader.folder.iterdir())
    with pytest.raises(AssertionError, match="No such file"):
        reader.type("cat sub/one.txt")
    reader.write_files()
    assert reader.type("cat sub/one.txt") == "1\n"
    shown = reader.lines[2]
    assert reader.type(shown) == " unset unset unset\n"
    reader.type("export MINE=yes")
    assert reader.type(shown) == "yes unset unset unset\n"
    with pytest.raises(AssertionError, match="exit 3"):
        reader.type("exit 3")


def test_no_other_line_can_be_typed(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="not a line of the page: touch it"):
        reader.type("touch it")
    with pytest.raises(AssertionError, match=r"not to be added: .*seed=1"):
        reader.type("cat sub/one.txt", shorter="--set report=false --set seed=1")
    with pytest.raises(AssertionError, match="not a line of the page: echo again"):
        reader.type("echo again")
    reader.type('echo "run it: echo again"')
    assert reader.type("echo again") == "again\n"


def test_pages_are_run_in_no_other_way() -> None:
    """A test that reads a page's blocks starts no program of its own."""
    for path in TESTS.rglob("*.py"):
        text = path.read_text()
        reads = re.search(r"from tests\.docs\.(pages|typed) import", text)
        if reads and path.name not in ("typed.py", "test_typed.py", "test_wheel.py"):
            assert "subprocess" not in text, f"{path} reads pages, and starts programs"
