import os

import pytest

from fedsuite.data import loading

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr_datasets is imported


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """No test reads or writes a cache or data folder of the machine."""
    monkeypatch.setenv("FEDSUITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)
    loading._loaded.cache_clear()
    loading._divided.cache_clear()
    yield
    loading._loaded.cache_clear()
    loading._divided.cache_clear()
