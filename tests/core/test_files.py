"""Atomic writes: whole old file or whole new file, nothing else."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load

from fedsuite.core.errors import RunError
from fedsuite.core.files import TEMPORARY_PATTERN, atomic_write, safetensors_bytes


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "file.bin"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_file_is_flushed_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        steps.append("folder" if os.path.isdir(f"/dev/fd/{descriptor}") else "file")
        fsync(descriptor)

    def record_replace(source, target):
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    atomic_write(tmp_path / "file", b"data")
    assert steps == ["file", "rename", "folder"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_keeps_the_old_file_and_leaves_no_temporary(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(RunError, match=r"cannot write .*file: No space left on device"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match=r"cannot write .*none/file: No such file"):
        atomic_write(tmp_path / "none" / "file", b"data")


def test_permissions_follow_the_umask(tmp_path):
    atomic_write(tmp_path / "atomic", b"")
    (tmp_path / "plain").touch()
    modes = {os.stat(tmp_path / name).st_mode for name in ("atomic", "plain")}
    assert len(modes) == 1


KILLED = """
import sys
from pathlib import Path
from fedsuite.core.files import atomic_write
for number in range(10**9):
    atomic_write(Path(sys.argv[1]), bytes([number % 256]) * 400_000)
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.031])
def test_killed_writer_leaves_a_whole_file(tmp_path, delay):
    path = tmp_path / "file"
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    try:
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    data = path.read_bytes()
    assert len(data) == 400_000
    assert len(set(data)) == 1
    leftovers = [name for name in tmp_path.iterdir() if name != path]
    assert all(name.match(TEMPORARY_PATTERN) for name in leftovers)


def test_arrays_are_written_as_they_are_read_however_they_lie_in_memory():
    """The library by itself writes their memory: these would be read back as others."""
    counted = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = {
        "plain": counted,
        "transposed": counted.T,
        "channels-last": np.ascontiguousarray(counted.transpose(0, 2, 1)).swapaxes(1, 2),
        "every-other": counted[:, ::2],
        "backwards": counted[::-1],
        "scalar": np.array(3, dtype=np.int64),
        "empty": counted[:0].T,
    }
    found = load(safetensors_bytes(arrays, "a note"))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
