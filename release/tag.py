"""Tags a commit as a release, once version, changelog, tree and archives agree.

    python release/tag.py

``make tag`` runs it after ``make dist``. It pushes nothing: the push of the tag starts the
release, and is left to a person.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def objections(
    version: str, changelog: str, status: str, tags: str, dist: set[str]
) -> list[str]:
    """Return what speaks against a release, one sentence each.

    Parameters
    ----------
    version
        The version of ``pyproject.toml``.
    changelog
        Text of the changelog.
    status, tags
        What ``git status --porcelain`` and ``git tag`` say.
    dist
        Names of the files in ``dist``.
    """
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    released = rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d"
    wanted = {f"fedsuite-{version}-py3-none-any.whl", f"fedsuite-{version}.tar.gz"}
    against = []
    if not any(re.fullmatch(released, heading) for heading in headings[:2]):
        against.append(
            f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD` at its top: give "
            "the changes of [Unreleased] that heading"
        )
    if status:
        against.append("the tree has changes: commit them")
    if f"v{version}" in tags.split():
        against.append(f"tag v{version} is there: raise the version in pyproject.toml")
    against += [f"dist/ lacks {name}: run make dist" for name in sorted(wanted - dist)]
    return against


def main() -> None:
    """Tag the commit, or say what is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    against = objections(
        version,
        (ROOT / "CHANGELOG.md").read_text(),
        _git("status", "--porcelain"),
        _git("tag"),
        {path.name for path in (ROOT / "dist").glob("*")},
    )
    if against:
        sys.exit("\n".join(f"no release: {words}" for words in against))
    _git("tag", "--annotate", f"v{version}", "--message", f"fedsuite {version}")
    print(f"tagged v{version}; to release it: git push origin v{version}")


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
