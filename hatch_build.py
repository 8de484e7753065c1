"""Puts the experiment files into the wheel: those who install it have no repository."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Adds ``simulations`` to the package as data, without pages and results."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to add; an editable installation finds them where they are."""
        if version == "editable":
            return
        root = Path(self.root)
        app = root / "simulations" / "plug_in"
        for path in sorted({*root.glob("simulations/**/*.toml"), *app.glob("*.py")}):
            # No module of the package: what is sent to nodes and compared are all of those.
            name = path.relative_to(root).as_posix().replace(".py", ".py.txt")
            build_data["force_include"][str(path)] = f"fedsuite/{name}"
