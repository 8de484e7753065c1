"""An existing Ray cluster: where it is, and whether each of its nodes fits a run.

Flower's simulation takes no address, but Ray itself takes one from the environment. Then it
starts as many clients as fit on all nodes. Every node imports its own fedsuite, reads its
own copy of the data, and must see the folder of the clients' state, because the next
message of a client may go to another node.
"""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.files import make_folder
from fedsuite.core.keys import Value
from fedsuite.core.own_process import anywhere
from fedsuite.core.progress import Work
from fedsuite.engines.processes import flower_environment
from fedsuite.engines.room import Room

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's own variable of a cluster's address."""

OWN = "local"
"""Address of a Ray that the run starts for itself, whatever the variable says."""

_ON_THIS_MACHINE = "auto"
_CONNECT_PATIENCE_S = 5.0
_PROBE_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Parameters
    ----------
    name
        Its address, for people.
    cpus, gpus
        What Ray may use of it.
    facts
        Versions by package, and hash of fedsuite's source as ``fedsuite``.
    data
        Fingerprint of the experiment's data there.
    data_error
        Why the data cannot be read there; empty if they can.
    shares_state
        Whether the folder of the clients' state is the same there.
    """

    name: str
    cpus: float
    gpus: float
    facts: Mapping[str, str]
    data: str = ""
    data_error: str = ""
    shares_state: bool = True


@dataclass(frozen=True)
class Cluster:
    """A cluster whose nodes fit a run: its address, and its nodes."""

    address: str
    nodes: tuple[Node, ...]

    def room(self, room: Room) -> int:
        """Return how many clients train at a time.

        Raises
        ------
        RunError
            If no node has room for one, or the share of a GPU cannot work on one.
        """
        for node in self.nodes:
            if words := room.wrong_share(node.cpus, node.gpus):
                raise RunError(f"node {node.name} of the Ray cluster: {words}")
        found = sum(room.clients_on(node.cpus, node.gpus) for node in self.nodes)
        if not found:
            raise RunError(
                f"no node of the Ray cluster {self.address} has {room.client_cpus} CPUs "
                f"and {room.client_gpus:g} GPUs for a client: lower --client-cpus or "
                "--client-gpus"
            )
        return found


def chosen_address(key: str, environment: Mapping[str, str]) -> str:
    """Return the address ``HOST:PORT`` of the cluster to use; empty for none.

    Parameters
    ----------
    key
        The key ``ray-address``, which wins over the variable.
    environment
        Where :data:`ADDRESS_VARIABLE` may be.

    Raises
    ------
    ConfigError
        If the address has another form.
    RunError
        If ``auto`` finds no cluster.
    """
    name = "key ray-address" if key else f"variable {ADDRESS_VARIABLE}"
    address = key or environment.get(ADDRESS_VARIABLE, "")
    if address in ("", OWN):
        return ""
    if address == _ON_THIS_MACHINE:
        return _started_here(environment)
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{name} = {address!r}: expected HOST:PORT as `ray start --head` prints it, "
            f"{_ON_THIS_MACHINE} for the cluster of this machine, or {OWN} for a Ray of "
            "the run's own"
        )
    return address


def _started_here(environment: Mapping[str, str]) -> str:
    """Return the address that ``ray start`` noted on this machine."""
    note = Path(environment.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        return note.read_text(encoding="utf-8").strip()
    except OSError:
        raise RunError(
            f"no Ray cluster runs on this machine ({note} is not there): start a node by "
            "`ray start`, or name the cluster's HOST:PORT in ray-address"
        ) from None


def join(values: Mapping[str, Value], address: str) -> Cluster:
    """Return a cluster after a look at each of its nodes.

    Parameters
    ----------
    values
        The experiment, with absolute folders.
    address
        ``HOST:PORT``.

    Raises
    ------
    RunError
        If there is no cluster, or a node does not fit; it names the node.
    """
    _check_answers(address)
    folder = Path(str(values["state-dir"]))
    make_folder(folder)
    token = folder / f".cluster-{uuid.uuid4().hex}"
    token.touch()
    request = {"address": address, "values": dict(values), "token": str(token)}
    try:
        with Work(f"looking at the nodes of {address}"):
            told = _probe(request)
    finally:
        token.unlink(missing_ok=True)
    nodes = tuple(Node(**node) for node in told["nodes"])
    if misfit := misfit_of(nodes, told["facts"], told["keeps_state"], folder):
        raise RunError(misfit)
    return Cluster(address, nodes)


def misfit_of(
    nodes: Sequence[Node], ours: Mapping[str, str], keeps_state: bool, folder: Path
) -> str:
    """Return in a line which node does not fit and why; empty if all fit.

    Parameters
    ----------
    nodes
        The nodes.
    ours
        Facts of this process.
    keeps_state
        Whether clients of the method keep something between rounds.
    folder
        Folder of what they keep.
    """
    for node in nodes:
        for package, version in ours.items():
            theirs = node.facts.get(package, "")
            if theirs != version:
                return (
                    f"node {node.name} of the Ray cluster has {package} "
                    f"{theirs[:12] or 'none'}, and this process {version[:12]}: install "
                    "the same version on each node, and start Ray from that environment"
                )
        if node.data_error:
            return (
                f"node {node.name} of the Ray cluster cannot use the data: "
                f"{node.data_error}; give each node the data set, in the same data-dir"
            )
        if node.data != nodes[0].data:
            return (
                f"nodes {nodes[0].name} and {node.name} of the Ray cluster have different "
                "data: give each the same files"
            )
        if keeps_state and not node.shares_state:
            return (
                f"node {node.name} of the Ray cluster cannot write into {folder}, where "
                "the method's clients keep their state: name a folder that all nodes "
                "share in state-dir"
            )
    return ""


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens, for which Ray would look for minutes."""
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    try:
        socket.create_connection(place, timeout=_CONNECT_PATIENCE_S).close()
    except OSError as error:
        raise RunError(
            f"no Ray cluster at {address} ({error.strerror or error}): start one by `ray "
            "start --head`, or correct the key ray-address or the variable "
            f"{ADDRESS_VARIABLE}"
        ) from None


def _probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the probe in a process of its own, which Ray may fill and even end."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedsuite.engines.cluster_probe"],
            env=flower_environment(anywhere(os.environ)) | {"PYTHONPATH": import_path()},
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_PROBE_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"the Ray cluster {request['address']} did not show its nodes within "
            f"{_PROBE_PATIENCE_S:g} s: see `ray status --address {request['address']}`"
        ) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RunError(
            f"cannot use the Ray cluster {request['address']}: "
            f"{lines[-1] if lines else f'code {done.returncode}'}"
        )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def import_path() -> str:
    """Return what nodes of this machine need on PYTHONPATH to import what we do."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([here, *map(os.path.abspath, sys.path)]))
