"""A disk that is small in earnest, in namespaces of a process: it needs no rights."""

import ctypes
import os
from pathlib import Path

import pytest

from tests.faults.runs import in_child

_NEW_NAMESPACES = 0x10000000 | 0x00020000
_REMOUNT = 32


class SmallDisk:
    """A tmpfs of a given size, in namespaces that end with this process."""

    def __init__(self, folder: Path, size: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folder = str(folder).encode()
        user, group = os.getuid(), os.getgid()
        self._check(self._libc.unshare(_NEW_NAMESPACES))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        self._mount(size, 0)

    def grow(self, size: int) -> None:
        """Make room."""
        self._mount(size, _REMOUNT)

    def _mount(self, size: int, flags: int) -> None:
        options = f"size={size}".encode()
        self._check(self._libc.mount(b"tmpfs", self._folder, b"tmpfs", flags, options))

    @staticmethod
    def _check(result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def need_small_disks(folder: Path) -> None:
    """Skip the test where the kernel allows no disks of one's own."""

    def attempt() -> None:
        try:
            SmallDisk(folder, 4096)
        except OSError as error:
            os.write(2, str(error).encode())
            os._exit(3)

    if in_child(attempt):
        pytest.skip("the kernel allows no user and mount namespaces here")
