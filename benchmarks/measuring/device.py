"""What the device is, and how busy it is: by ``nvidia-smi``, where there is one."""

import csv
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SMI = "nvidia-smi"
EVERY_MS = 200

NAME = "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name())"
"""Asked in another process: one that has used the GPU keeps memory there."""

Sample = tuple[float, float, float]
"""Seconds since the epoch, per cent of the last moments with a kernel, MiB in use."""


def gpu_name() -> str:
    """Return the name of the GPU that torch uses; empty without one."""
    name = subprocess.check_output([sys.executable, "-c", NAME], text=True).strip()
    return "" if name == "False" else name


def driver() -> str:
    """Return the driver's version and the GPU's memory; empty without ``nvidia-smi``."""
    if shutil.which(SMI) is None:
        return ""
    command = _query("driver_version,memory.total", "--format=csv,noheader")
    asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return asked.stdout.strip()


@contextmanager
def sampled() -> Iterator[list[Sample]]:
    """Look at the device all the while; the list is filled at the end of the block."""
    samples: list[Sample] = []
    if shutil.which(SMI) is None:
        yield samples
        return
    options = ("--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}")
    command = _query("timestamp,utilization.gpu,memory.used", *options)
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            yield samples
        finally:
            process.terminate()
            process.wait()
        output.seek(0)
        samples += read_samples(output.read())


def _query(fields: str, *options: str) -> list[str]:
    """Return the command that asks of the first GPU that torch sees."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return [SMI, f"--id={first or 0}", f"--query-gpu={fields}", *options]


def read_samples(text: str) -> list[Sample]:
    """Return the looks that lines of ``nvidia-smi`` tell; others, such as [N/A], not."""
    samples = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            when = datetime.datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            samples.append((when, float(row[1]), float(row[2])))
        except (IndexError, ValueError):
            continue
    return samples


def used(samples: Sequence[Sample], start: float, end: float) -> dict[str, float | None]:
    """Return how busy the device was between two times, and the most memory ever."""
    during = [share for time, share, _ in samples if start <= time <= end]
    return {
        "busy": statistics.fmean(during) if during else None,
        "gpu_mib": max((memory for _, _, memory in samples), default=None),
    }
