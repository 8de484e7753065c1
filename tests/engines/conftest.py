"""The tiny app as a package on disk."""

from pathlib import Path

import pytest

from tests.engines.tiny_app import CLIENT_APP, SERVER_APP


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny_app"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "shared.py").write_text("GREETING = 'stale'")
    (folder / "__init__.py").touch()
    (folder / "shared.py").write_text("GREETING = 'hello'")
    (folder / "notes.txt").write_text("stays at home")
    (folder / "server_app.py").write_text(SERVER_APP)
    (folder / "client_app.py").write_text(CLIENT_APP)
    return folder
