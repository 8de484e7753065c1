"""What Ray sets aside for each client at work, and how many clients a machine has room for.

Who asks for more than there is waits half a minute for Ray, and gets its reason a hundred
lines above the last. Before anything starts it is one line.
"""

import json
import math
import os
from dataclasses import dataclass

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO
from fedsuite.workarounds.ray_cpus import counted_cpus

_SMALLEST_SHARE = 0.0001
"""Ray's unit of a share."""


@dataclass(frozen=True)
class Room:
    """Where clients train: nodes, and what Ray reserves per working client.

    Parameters
    ----------
    num_supernodes, client_cpus, client_gpus
        As for :func:`fedsuite.engines.api.run`.
    """

    num_supernodes: int = 0
    client_cpus: int = 1
    client_gpus: float = 0.0

    def check(self, engine: str, device: str = AUTO) -> None:
        """Refuse amounts that Ray does not set aside, or that another engine passes over.

        Parameters
        ----------
        engine, device
            The experiment's keys.

        Raises
        ------
        ConfigError
            Naming the option.
        """
        cpus, gpus = self.client_cpus, self.client_gpus
        if engine != "ray" and (cpus, gpus) != (1, 0.0):
            option = f"--client-cpus {cpus}" if cpus != 1 else f"--client-gpus {gpus:g}"
            raise ConfigError(
                f"{option}: the engine {engine} sets nothing aside for a client: leave it "
                "out, or take --engine ray"
            )
        if engine == "ray" and device == "cuda" and not gpus:
            raise ConfigError(
                "key device = 'cuda': Ray hides all GPUs from clients that reserve none: "
                "give --client-gpus, a share such as 0.25 or whole GPUs"
            )
        if cpus < 1:
            raise ConfigError(f"--client-cpus {cpus}: expected at least 1")
        whole = math.isfinite(gpus) and gpus == int(gpus)
        if not ((whole and gpus >= 0) or _SMALLEST_SHARE <= gpus < 1):
            raise ConfigError(
                f"--client-gpus {gpus:g}: expected 0, a share of a GPU such as 0.25, or "
                "whole GPUs"
            )

    def check_here(self) -> None:
        """Refuse a client that does not fit on this machine, or whose share cannot work.

        Raises
        ------
        ConfigError
            Naming the option, and what there is.
        """
        if (self.client_cpus, self.client_gpus) == (1, 0.0):
            return  # the usual client fits anywhere, and to count takes a second
        cpus, gpus = cpus_of_ray(), gpus_of_ray() if self.client_gpus else 0
        for option, wanted, there in (
            ("--client-cpus", self.client_cpus, cpus),
            ("--client-gpus", self.client_gpus, gpus),
        ):
            if wanted > there:
                advice = f"set at most {there}" if there else "leave it out"
                raise ConfigError(
                    f"{option} {wanted:g}: this machine has {there}, so no client could "
                    f"start: {advice}"
                )
        if not self.client_gpus:
            return
        # Flower divides all GPUs by the share, but a client's share lies on one GPU. Those
        # beyond Ray's room would wait for ever.
        per_gpu = int(1 / self.client_gpus + 1e-9)
        on_gpus = gpus * per_gpu if per_gpu else int(gpus / self.client_gpus)
        most = int(cpus / self.client_cpus)
        fits, counted = min(most, on_gpus), min(most, int(gpus / self.client_gpus))
        if counted > fits:
            raise ConfigError(
                f"--client-gpus {self.client_gpus:g}: {gpus:g} GPUs have room for {fits} "
                f"such clients, and Flower would start {counted}: set "
                f"{_rounded_down(1 / per_gpu)}"
            )


def _told_to_ray(resource: str) -> int | None:
    """Return how much of a resource Ray's own variable says that there is; None if not."""
    try:
        return int(json.loads(os.environ.get("RAY_OVERRIDE_RESOURCES", "{}"))[resource])
    except (KeyError, TypeError, ValueError):
        return None


def cpus_of_ray() -> int:
    """Return the CPUs that Ray counts here, which are a container's where there is one."""
    if (cpus := _told_to_ray("CPU")) is not None:
        return cpus
    return counted_cpus()


def gpus_of_ray() -> int:
    """Return the GPUs that processes of this machine may use."""
    if (gpus := _told_to_ray("GPU")) is not None:
        return gpus
    import torch

    return torch.cuda.device_count()


def _rounded_down(share: float) -> str:
    """Return a share in four digits, of which as many fit."""
    return f"{math.floor(share * 10_000) / 10_000:g}"
