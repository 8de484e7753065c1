"""Real runs through Ray and the deployment engine: what arrives, and what is left."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.errors import RunError
from fedsuite.engines.deployment import run_deployment
from fedsuite.engines.ray import run_ray
from tests.engines.tiny_app import ODD_VALUES, processes_of


def config_for(report: Path, **changes: Any) -> dict[str, Any]:
    own = {"report": str(report), "fail": "", "nodes": 1, "sleep": 0.0}
    return ODD_VALUES | own | changes


def assert_nothing_left(neutral_folder: str) -> None:
    world = Path(neutral_folder).parent
    assert world.name.startswith("fed-")
    assert not world.exists()
    if sys.platform == "linux":
        assert processes_of(str(world)) == []


def run_and_read(run: Callable[..., None], report: Path, **options: Any) -> dict[str, Any]:
    lines: list[str] = []
    run(on_line=lines.append, **options)
    assert "the ServerApp has begun" in lines
    return json.loads(report.read_text())


@pytest.mark.slow
def test_ray_and_deployment_run_side_by_side_and_leave_nothing(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder with spaces"
    # The caller's folder must not matter, even if it holds another copy of the app.
    (folder / "tiny_app").mkdir(parents=True)
    (folder / "tiny_app" / "shared.py").write_text("GREETING = 'shadow'")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    drivers: dict[Callable[..., None], int] = {run_ray: 4, run_deployment: 2}
    with ThreadPoolExecutor() as pool:
        running = []
        for index, (driver, nodes) in enumerate(drivers.items()):
            report = folder / f"report {index}.json"
            config = config_for(report, nodes=nodes)
            options = {"run_config": config, "num_supernodes": nodes, "package": package}
            running.append((config, pool.submit(run_and_read, driver, report, **options)))
        for config, future in running:
            facts = future.result()
            assert facts["config"] == config
            assert facts["greeting"] == "hello"
            expected = [
                {
                    "partition-id": i,
                    "num-partitions": config["nodes"],
                    "text": ODD_VALUES["quotes"],
                    "greeting": "hello",
                }
                for i in range(config["nodes"])
            ]
            found = sorted(facts["partitions"], key=lambda p: p["partition-id"])
            assert found == expected
            assert_nothing_left(facts["folder"])


@pytest.mark.smoke
@pytest.mark.slow
def test_failing_server_app_is_a_run_error_with_its_message(
    tmp_path: Path, package: Path
) -> None:
    report = tmp_path / "report.json"
    config = config_for(report, fail="key seed = -1: expected a whole number >= 0")
    with pytest.raises(
        RunError, match=r"failed: key seed = -1: expected a whole number >= 0$"
    ):
        run_deployment(config, num_supernodes=1, on_line=lambda line: None, package=package)
    assert_nothing_left(json.loads(report.read_text())["folder"])


@pytest.mark.smoke
@pytest.mark.slow
def test_terminated_ray_run_leaves_nothing(tmp_path: Path, package: Path) -> None:
    report = tmp_path / "report.json"
    config = config_for(report, nodes=2, sleep=600.0)
    code = (
        "import json, sys; from pathlib import Path; "
        "from fedsuite.engines.ray import run_ray; "
        "config, package = json.loads(sys.argv[1]); "
        "run_ray(config, num_supernodes=2, package=Path(package))"
    )
    arguments = json.dumps([config, str(package)])
    driver = subprocess.Popen(
        [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    for line in driver.stdout:
        if "the ServerApp has begun" in line:
            break
    time.sleep(2.0)  # let Ray start its daemons
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=30) == 128 + signal.SIGTERM
    driver.stdout.close()
    assert_nothing_left(json.loads(report.read_text())["folder"])
