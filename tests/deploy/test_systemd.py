"""The systemd units in deploy/: known directives, and what systemd says of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.shipped import UNITS

SECTIONS = {
    "Unit": "Description Documentation Wants After StartLimitIntervalSec StartLimitBurst",
    "Service": "Type User Group Environment EnvironmentFile WorkingDirectory ExecStart "
    "Restart RestartSec KillMode TimeoutStopSec StateDirectory StateDirectoryMode UMask "
    "NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome "
    "PrivateTmp PrivateDevices PrivateUsers ProtectClock ProtectHostname "
    "ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectControlGroups "
    "ProtectProc RestrictAddressFamilies RestrictNamespaces RestrictRealtime "
    "RestrictSUIDSGID LockPersonality RemoveIPC SystemCallArchitectures SystemCallFilter "
    "SystemCallErrorNumber",
    "Install": "WantedBy",
}


def directives(unit: Path) -> dict[str, list[tuple[str, str]]]:
    """Return a unit's directives by section; fails on a line that is none."""
    found: dict[str, list[tuple[str, str]]] = {}
    section: list[tuple[str, str]] = []
    for line in unit.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), [])
            continue
        key, sign, value = line.partition("=")
        assert sign, line
        section.append((key, value))
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_hold_known_directives(unit: Path) -> None:
    found = directives(unit)
    assert set(found) == set(SECTIONS)
    for section, pairs in found.items():
        assert {key for key, _ in pairs} <= set(SECTIONS[section].split())
    service = dict(found["Service"])
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == "fedsuite"
    variables = set(re.findall(r"\$\{(\w+)\}", service["ExecStart"]))
    given = {value.split("=")[0] for key, value in found["Service"] if key == "Environment"}
    assert variables <= given, "a variable without a default would be empty"


def test_a_sites_unit_leaves_apps_a_shelter() -> None:
    (unit,) = [unit for unit in UNITS if "supernode" in unit.name]
    filters = [v for k, v in directives(unit)["Service"] if k == "SystemCallFilter"]
    assert "landlock_restrict_self" in filters[-1]
    assert 'shelter = "landlock"' in unit.read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    # An instance of the template, whose program is one that is there.
    copy = tmp_path / unit.name.replace("@.", "@hospital-a.")
    text = re.sub(r"(?<=^ExecStart=)\S+", "/bin/true", unit.read_text(), flags=re.M)
    copy.write_text(text.replace("https://flower.ai/docs", "man:true(1)"))
    for words in (
        ["verify", "--man=no"],
        ["security", "--offline=true", "--threshold=30", "--no-pager"],
    ):
        done = subprocess.run(
            [tool, *words, str(copy)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        problems = [line for line in done.stderr.splitlines() if unit.name[:12] in line]
        assert not problems
