"""A release: what speaks against it, and what its script and workflow take for granted."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DIST = {"fedsuite-1.2.3-py3-none-any.whl", "fedsuite-1.2.3.tar.gz"}
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-30\n\n### Added\n"


@pytest.fixture(scope="module")
def tag() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tag", ROOT / "release" / "tag.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_speaks_against_a_release_that_is_ready(tag: ModuleType) -> None:
    assert tag.objections("1.2.3", CHANGELOG, "", "v1.2.2\n", DIST) == []


@pytest.mark.parametrize(
    ("version", "changelog", "status", "tags", "dist", "words"),
    [
        ("1.2.3", "## [Unreleased]\n", "", "", DIST, "has no heading"),
        ("1.2.3", CHANGELOG.replace(" - 2026-11-30", ""), "", "", DIST, "has no heading"),
        ("1.2.3", CHANGELOG, " M README.md\n", "", DIST, "the tree has changes"),
        ("1.2.3", CHANGELOG, "", "v1.2.3\n", DIST, "tag v1.2.3 is there"),
        ("1.2.3", CHANGELOG, "", "", set(), "dist/ lacks fedsuite-1.2.3"),
    ],
)
def test_what_speaks_against_a_release(
    tag: ModuleType,
    version: str,
    changelog: str,
    status: str,
    tags: str,
    dist: set[str],
    words: str,
) -> None:
    against = tag.objections(version, changelog, status, tags, dist)
    assert against and all(words in sentence for sentence in against)


def test_the_changelog_has_the_form_that_a_release_asks_for() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    for heading in headings[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading)
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_release_is_made_on_the_constraints_that_tests_run_on() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "flwr-version-target"
    ]
    name = f"constraints/flwr-{version.rpartition('.')[0]}.txt"
    assert name in (ROOT / "release" / "dist.sh").read_text()
    assert name in (ROOT / "Makefile").read_text()


def test_pages_install_the_torch_that_the_release_is_made_with() -> None:
    pinned = (ROOT / "constraints" / "flwr-1.42.txt").read_text()
    (version,) = re.findall(r"^torch==([\d.]+)", pinned, re.MULTILINE)
    page = (ROOT / "deploy" / "README.md").read_text()
    assert re.findall(r"pip install torch==([\d.]+)", page) == [version]


def test_workflows_run_what_ci_and_the_makefile_have() -> None:
    """Every test target of the Makefile, and the site, run somewhere on a hosted runner."""
    workflows = {p.stem: p.read_text() for p in (ROOT / ".github/workflows").glob("*.yml")}
    for name in ("test", "release"):
        assert "run: bash .ci/run" in workflows[name]
    makefile = (ROOT / "Makefile").read_text()
    [targets] = re.findall(r"target: \[(.+)\]", workflows["nightly"])
    nightly = set(targets.split(", "))
    assert nightly <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    [all_tests] = re.findall(r"^test-all: test (.+?)  ##", makefile, re.MULTILINE)
    assert {*all_tests.split(), "docs"} <= nightly
