import json
import threading

import numpy as np
import pytest

from fedsuite.data.cache import cache_folder, load_or_build


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": np.arange(1000, dtype=np.uint8).reshape(10, 100), "n": np.array(7)}


def assert_right(arrays):
    assert np.array_equal(arrays["x"], Builder()()["x"])
    assert arrays["x"].dtype == np.uint8 and int(arrays["n"]) == 7


def test_builds_once_and_maps_the_files():
    build = Builder()
    first, second = load_or_build("set-1", build), load_or_build("set-1", build)
    assert build.calls == 1
    assert_right(first)
    assert_right(second)
    assert isinstance(second["x"], np.memmap) and not second["x"].flags.writeable
    assert not list(cache_folder().glob("*.unfinished"))


def test_another_entry_is_built_anew():
    build = Builder()
    load_or_build("set-1", build)
    load_or_build("set-2", build)
    assert build.calls == 2


def flip_a_byte(folder):
    path = folder / "x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_short(folder):
    path = folder / "x.npy"
    path.write_bytes(path.read_bytes()[:-10])


def other_type(folder):
    np.save(folder / "x.npy", np.arange(1000, dtype=np.uint8).reshape(20, 50))


def empty_manifest(folder):
    (folder / "manifest.json").write_text("")


def strange_manifest(folder):
    (folder / "manifest.json").write_text(json.dumps([1, 2]))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        cut_short,
        other_type,
        empty_manifest,
        strange_manifest,
        lambda folder: (folder / "x.npy").unlink(),
        lambda folder: (folder / "x.npy").write_bytes(b""),
        lambda folder: (folder / "manifest.json").unlink(),
    ],
)
def test_damaged_entry_is_rebuilt(damage):
    build = Builder()
    load_or_build("set-1", build)
    damage(cache_folder() / "set-1")
    assert_right(load_or_build("set-1", build))
    assert build.calls == 2
    load_or_build("set-1", build)
    assert build.calls == 2


def test_pickles_are_not_read(tmp_path):
    build = Builder()
    load_or_build("set-1", build)
    np.save(cache_folder() / "set-1" / "x.npy", np.array([{}], object), allow_pickle=True)
    assert_right(load_or_build("set-1", build))
    assert build.calls == 2


def test_leftovers_of_a_killed_process_do_not_matter():
    unfinished = cache_folder() / "set-1.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "x.npy").write_bytes(b"torn")
    build = Builder()
    assert_right(load_or_build("set-1", build))
    assert not unfinished.exists()


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDSUITE_CACHE", str(tmp_path / "file" / "cache"))
    build = Builder()
    assert_right(load_or_build("set-1", build))
    assert_right(load_or_build("set-1", build))
    assert build.calls == 2


def test_disk_that_fills_up(monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsuite.data.cache.np.save", full)
    assert_right(load_or_build("set-1", Builder()))
    assert not list(cache_folder().glob("set-1*/"))


def test_error_while_building_leaves_nothing():
    def fails():
        raise RuntimeError("no such image")

    with pytest.raises(RuntimeError):
        load_or_build("set-1", fails)
    assert_right(load_or_build("set-1", Builder()))


def test_concurrent_callers_build_once():
    build = Builder()
    threads = [
        threading.Thread(target=load_or_build, args=("set-1", build)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.calls == 1
