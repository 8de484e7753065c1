"""Shuts itself in by Landlock and seccomp, and becomes a program that can do no more.

    python -I -S landlock.py READ WRITE DEVICES COMMAND ...

The first three are paths with commas: read, written, and devices. The program opens no
other file. It makes no socket but pairs of its own, starts no process and signals none, so
nothing of it stays behind. This needs no privilege and no user namespace, so it works in
containers and under systemd's restrictions.

This file runs by its path and imports nothing of fedsuite. Linux only, 5.13 and later.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISDIR

_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _DEVICE_CALL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE_CALL
_OF_NODES = 1 << 6 | 1 << 9 | 1 << 11
"""Making devices and sockets, which nobody may."""

_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""What Landlock checks of files, by the first version (ABI) that does."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _DROP_CAPABILITY = 38, 22, 24
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_DONE, _EPERM, _ENOSYS, _ENOTSUP = 0, 1, 38, 95
_THREAD, _STREAM = 0x10000, 1

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the numbers below, and the kernel's name of the machine."""

_CALLS: dict[int, dict[str, tuple[int, int]]] = {
    # No line to others, kernel's queues of requests included.
    _EPERM: {
        **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200)},
        **{"io_uring_setup": (425, 425), "mq_open": (240, 180)},
        **{"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186)},
        **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
        # No other process.
        **{"fork": (57, -1), "vfork": (58, -1), "unshare": (272, 97)},
        **{"setns": (308, 268), "ptrace": (101, 117), "tkill": (200, 130)},
        **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
        **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)},
        **{"pidfd_open": (434, 434), "pidfd_send_signal": (424, 424)},
        **{"pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241)},
        # No file beside Landlock's rules.
        **{"truncate": (76, 45), "open_by_handle_at": (304, 265)},
    },
    # Modes, owners and times of any file of this user: done by word alone.
    _DONE: {
        **{"chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53)},
        **{"fchmodat2": (452, 452), "chown": (92, -1), "fchown": (93, 55)},
        **{"lchown": (94, -1), "fchownat": (260, 54), "utime": (132, -1)},
        **{"utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88)},
    },
    _ENOTSUP: {
        **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7)},
        **{"removexattr": (197, 14), "lremovexattr": (198, 15)},
        **{"fremovexattr": (199, 16), "setxattrat": (463, 463)},
        **{"removexattrat": (466, 466)},
    },
    # The C library then takes clone, whose flags can be seen.
    _ENOSYS: {"clone3": (435, 435)},
}


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def restrict_files(libc: ctypes.CDLL, allowed: Iterable[tuple[str, int]]) -> None:
    """Allow these paths, each with its rights, and no other file, for ever."""
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        sys.exit("this kernel has no Landlock")
    handled = max(bits for first, bits in _HANDLED.items() if first <= version)
    rules = libc.syscall(_CREATE, struct.pack("Q", handled), 8, 0)
    for path, rights in allowed:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights & handled, place)
        if libc.syscall(_ADD, rules, 1, rule, 0):
            sys.exit(f"Landlock refuses {path}: {os.strerror(ctypes.get_errno())}")
        os.close(place)
    if libc.syscall(_RESTRICT, rules, 0):
        sys.exit(f"Landlock: {os.strerror(ctypes.get_errno())}")


def restrict_calls(libc: ctypes.CDLL) -> None:
    """Forbid system calls that reach others, for ever; seccomp's small programs."""
    if platform.machine() not in _MACHINES:
        sys.exit(f"no list of system calls for {platform.machine()}")
    column, machine = _MACHINES[platform.machine()]

    def load(offset: int) -> bytes:
        return struct.pack("HBBI", 0x20, 0, 0, offset)

    def unless(test: int, value: int, skip: int) -> bytes:
        return struct.pack("HBBI", test, 0, skip, value & 0xFFFFFFFF)

    def answer(value: int) -> bytes:
        return struct.pack("HBBI", 0x06, 0, 0, value)

    equal, at_least, has_bit, number = 0x15, 0x35, 0x45, 0
    code = load(4) + unless(equal, machine, 1) + load(number)
    code += struct.pack("HBBI", 0x05, 0, 0, 1) + answer(_KILL)
    # Another way to number calls, on one machine.
    code += unless(at_least, 0x40000000, 1) + answer(_ERROR | _EPERM)
    for error, calls in _CALLS.items():
        for numbers in calls.values():
            if numbers[column] >= 0:
                code += unless(equal, numbers[column], 1) + answer(_ERROR | error)
    # The call, its argument, and what that must be; threads and signals within the process.
    for numbers, argument, test, value in (
        ((56, 220), 0, has_bit, _THREAD),
        ((62, 129), 0, equal, os.getpid()),
        ((234, 131), 0, equal, os.getpid()),
        ((302, 261), 0, equal, 0),
    ):
        code += unless(equal, numbers[column], 4) + load(16 + 8 * argument)
        code += unless(test, value, 1) + answer(_ALLOW) + answer(_ERROR | _EPERM)
    # Pairs of streams: a datagram could be sent to any socket that has a name.
    code += unless(equal, (53, 199)[column], 5) + load(24)
    code += struct.pack("HBBI", 0x54, 0, 0, 0xF)
    code += unless(equal, _STREAM, 1) + answer(_ALLOW) + answer(_ERROR | _EPERM)
    code += answer(_ALLOW)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    program = _Filter(len(code) // 8, code)
    if libc.prctl(_SET_SECCOMP, 2, ctypes.byref(program), 0, 0):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")


def shut_in(read: str, write: str, devices: str) -> None:
    """Shut this process in, which has one thread, for ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    rights = (
        (read, _EXECUTE | _READ | _READ_FOLDER),
        (write, ~(_OF_NODES | _EXECUTE | _DEVICE_CALL)),
        (devices, _READ | _WRITE | _DEVICE_CALL),
    )
    restrict_files(
        libc,
        [
            (path, right & 0xFFFF)
            for paths, right in rights
            for path in paths.split(",")
            if path and Path(path).exists()
        ],
    )
    restrict_calls(libc)


if __name__ == "__main__":
    shut_in(sys.argv[1], sys.argv[2], sys.argv[3])
    os.execv(sys.argv[4], sys.argv[4:])
