"""The files in deploy/, and checks of commands that stand in them."""

import io
import re
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

import fedsuite

DEPLOY = Path(fedsuite.__file__).parents[1] / "deploy"
README = (DEPLOY / "README.md").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]

HANDED_OUT = {
    "superlink": {"ca.crt", "server.pem", "server.key", "superexec.secret"},
    "site": {"ca.crt", "key", "superexec.secret", "node.toml", "policy.toml"},
}
"""Files that `fedsuite deploy init` makes in the folders that programs run with."""


SITE = ["fedsuite", "deploy", "supernode"]
"""What a site's container runs: SuperNode and relay."""


@cache
def flags_of(program: str) -> dict[str, bool]:
    """Return the flags of a program of Flower, and whether each takes a value."""
    (command,) = entry_points(group="console_scripts", name=program)
    printed = io.StringIO()
    with (
        patch("sys.argv", [program, "--help"]),
        redirect_stdout(printed),
        pytest.raises(SystemExit, match=r"^0$"),
    ):
        command.load()()
    usage = " ".join(printed.getvalue().partition("options:")[0].split())
    taken = {
        flag: bool(value) for flag, value in re.findall(r"(--[a-z-]+)( [A-Z{])?", usage)
    }
    assert "--insecure" in taken, usage
    return taken


def flower_program(words: list[str]) -> str:
    """Return which program of Flower's a command of a container is, or "" for none."""
    program = words[0] if len(words) == 1 else ""
    return program if program.startswith("flower-") else ""


def check_command(program: str, arguments: list[str]) -> set[str]:
    """Fail if an argument is none of the program's; return the flags that are given."""
    known, given = flags_of(program), set()
    rest = list(arguments)
    while rest:
        flag, sign, _ = rest.pop(0).partition("=")
        assert flag in known, f"{program} has no {flag}"
        given.add(flag)
        if known[flag] and not sign:
            assert rest, f"{program} {flag} has no value"
            assert not rest.pop(0).startswith("--")
        assert known[flag] or not sign, f"{program} {flag} takes no value"
    return given


def check_secured(program: str, given: set[str]) -> None:
    """Fail if a program of Flower is not encrypted, or lets anybody in."""
    assert "--superexec-auth-secret-file" in given, "the port is open to other programs"
    if program != "flower-superexec":
        assert "--insecure" not in given
        assert "--isolation" in given
    if program == "flower-superlink":
        assert {"--enable-supernode-auth", "--ssl-keyfile", "--database"} <= given
    if program == "flower-supernode":
        assert {"--auth-supernode-private-key", "--root-certificates"} <= given


def expand(text: str, **values: str) -> str:
    """Replace compose's ``${NAME:-default}``."""
    return re.sub(
        r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: values.get(m[1], m[2] or ""), text
    )


def nginx_text() -> str:
    text = (DEPLOY / "nginx.conf").read_text()
    text = re.sub(r"#.*", "", text)
    assert text.count("{") == text.count("}")
    return text


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))

MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [doc for doc in yaml.safe_load_all(path.read_text()) if doc is not None]
