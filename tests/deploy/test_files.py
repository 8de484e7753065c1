"""The page in deploy/: versions, files and commands that it names are there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.shipped import DEPLOY, MANIFESTS, README, UNITS


def test_the_versions_are_the_ones_tested() -> None:
    pinned = (DEPLOY.parent / "constraints" / "flwr-1.42.txt").read_text()
    (version,) = re.findall(r"^flwr==([\d.]+)", pinned, re.MULTILINE)
    text = "".join(path.read_text() for path in (*MANIFESTS, DEPLOY / "compose.yml"))
    found = set(
        re.findall(r"(?:superlink|supernode|superexec):(?:\$\{\w+:-)?([\d.]+)", text)
    )
    assert found == {version}


def test_the_page_names_files_that_are_there() -> None:
    for name in set(re.findall(r"`((?:systemd|docker|kubernetes)/[\w@./-]*)`", README)):
        assert (DEPLOY / name).exists(), name
    for name in set(re.findall(r"deploy/([\w./-]+\.(?:yml|yaml|conf))", README)):
        assert (DEPLOY / name).exists(), name


def test_the_pages_examples_are_good_experiments_and_nodes() -> None:
    from fedsuite.data.site import site_from_config
    from fedsuite.experiment.experiment import Experiment

    blocks = [b.replace("\n    ", "\n") for b in re.findall(r"(?:\n(?:    .*)?)+", README)]
    heart = next(b for b in blocks if "# heart.toml" in b)
    experiment = Experiment.from_values(tomllib.loads(heart))
    assert experiment["num-clients"] == 2
    node = tomllib.loads(next(b for b in blocks if "[node-config]" in b))
    assert site_from_config(node["node-config"]).data == Path("/srv/hospital-a")
    for key in re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE):
        if key not in ("site", "allowed-code", "schema", "least-rows", "evaluation-only"):
            site_from_config({"data": "/srv", key: "x:y"})
            with pytest.raises(Exception, match=key):
                site_from_config({"data": "/srv", key: 3})


def test_the_pages_commands_are_fedsuites() -> None:
    text = README + "".join(unit.read_text() for unit in UNITS)
    calls = re.findall(r"fedsuite deploy (\w+)((?: +[^\s#`]+)*)", text)
    assert {"init", "superlink", "supernode", "run", "status"} <= {
        name for name, _ in calls
    }
    helped: dict[str, str] = {}
    for name, rest in calls:
        if name not in helped:
            done = subprocess.run(
                [sys.executable, "-m", "fedsuite", "deploy", name, "--help"],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            )
            assert done.returncode == 0, done.stderr
            helped[name] = done.stdout
        for flag in re.findall(r"--[a-z-]+", rest):
            assert flag in helped[name], f"fedsuite deploy {name} has no {flag}"
