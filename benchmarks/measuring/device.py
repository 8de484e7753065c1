"""What the device is, and how busy it is: by ``nvidia-smi``, where there is one."""

import csv
import datetime
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

SMI = "nvidia-smi"
EVERY_MS = 200
PATIENCE_S = 10.0

NAME = "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name())"
"""Asked in another process: one that has used the GPU keeps memory there."""


@dataclass(frozen=True)
class Sample:
    """A look at the device.

    Parameters
    ----------
    time
        Seconds since the epoch.
    busy
        Share of the last moments in which a kernel ran, per cent.
    memory_mib
        Memory in use, by all processes.
    """

    time: float
    busy: float
    memory_mib: float


def gpu_name() -> str:
    """Return the name of the GPU that torch uses; empty without one."""
    asked = subprocess.run(
        [sys.executable, "-c", NAME], check=True, stdout=subprocess.PIPE, text=True
    )
    name = asked.stdout.strip()
    return "" if name == "False" else name


def driver() -> str:
    """Return the driver's version and the whole memory, as ``nvidia-smi`` tells them."""
    if shutil.which(SMI) is None:
        return "not available"
    fields = "--query-gpu=driver_version,memory.total"
    command = [SMI, *_chosen(os.environ), fields, "--format=csv,noheader"]
    asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return (asked.stdout.strip().splitlines() or ["not available"])[0]


@contextmanager
def sampled() -> Iterator[list[Sample]]:
    """Look at the device all the while; the list is filled at the end of the block."""
    samples: list[Sample] = []
    if shutil.which(SMI) is None:
        yield samples
        return
    query = "--query-gpu=timestamp,utilization.gpu,memory.used"
    options = ("--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}")
    with tempfile.TemporaryFile("w+") as output:
        command = [SMI, *_chosen(os.environ), query, *options]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            yield samples
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        output.seek(0)
        samples += read_samples(output.read())


def _chosen(environment: Mapping[str, str]) -> list[str]:
    """Return the option that names the first GPU that the process sees."""
    first = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return [f"--id={first or 0}"]


def read_samples(text: str) -> list[Sample]:
    """Return the looks that lines of ``nvidia-smi`` tell; others, such as [N/A], not."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            when = datetime.datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").astimezone()
            found.append(Sample(when.timestamp(), float(row[1]), float(row[2])))
        except (IndexError, ValueError):
            continue
    return found


def busy(samples: Sequence[Sample], start: float, end: float) -> float | None:
    """Return the mean per cent in which the device was busy between two times."""
    found = [sample.busy for sample in samples if start <= sample.time <= end]
    return statistics.fmean(found) if found else None


def peak_mib(samples: Sequence[Sample]) -> float | None:
    """Return the most memory that was in use."""
    return max((sample.memory_mib for sample in samples), default=None)
