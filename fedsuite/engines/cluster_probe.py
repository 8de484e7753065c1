"""Looks at the nodes of a Ray cluster; a program, which :mod:`.cluster` runs.

It reads a request as JSON and prints facts of this process and of each node as JSON.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

PACKAGES = ("flwr", "ray", "torch", "numpy")
"""Packages whose versions must agree, beside Python and fedsuite."""


def own_facts() -> dict[str, str]:
    """Return versions of this process, and the hash of its fedsuite."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    facts = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = ""
    try:
        from fedsuite.training.app import source_hash

        facts["fedsuite"] = source_hash()
    except ImportError as error:
        facts["fedsuite"] = ""
        facts["why"] = str(error)
    return facts


def data_facts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of an experiment's data here, or why they cannot be read."""
    from fedsuite.core.errors import FedsuiteError
    from fedsuite.experiment.data_and_models import federated_data
    from fedsuite.experiment.experiment import Experiment

    try:
        return {"data": federated_data(Experiment.from_values(values)).fingerprint}
    except FedsuiteError as error:
        return {"data_error": str(error)}


def keeps_state(values: Mapping[str, Any]) -> bool:
    """Return whether clients of an experiment keep something between rounds."""
    from fedsuite.clients import load_client
    from fedsuite.core.registry import METHODS
    from fedsuite.messages.compression import DOWN, UP
    from fedsuite.messages.decomposition import clients_take_part
    from fedsuite.rounds.round_settings import RoundSettings

    client = load_client(METHODS[str(values["method"])])
    keys = RoundSettings.of(values)
    more = keys.codec(DOWN).is_on or keys.codec(UP).feeds_back
    return client.KEEPS_STATE or clients_take_part(values) or more


def look(values: Mapping[str, Any], token: str) -> dict[str, Any]:
    """Return what a node tells of itself.

    It runs there, and comes by value, so that a node without fedsuite can say so.
    """
    facts = own_facts()
    found = data_facts(values) if facts["fedsuite"] else {}
    shares = os.path.exists(token) and os.access(os.path.dirname(token), os.W_OK)
    return {"facts": facts, "shares_state": shares, **found}


def main() -> None:
    """Answer the request on standard input."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    request = json.load(sys.stdin)
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    ray.init(
        request["address"],
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": path},
    )
    asked = []
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for node in nodes:
        if not node["Alive"]:
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0)(look).options(scheduling_strategy=there)
        asked.append((node, task.remote(request["values"], request["token"])))
    told = []
    for node, answer in asked:
        room = node["Resources"]
        name = f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        count = {"cpus": room.get("CPU", 0.0), "gpus": room.get("GPU", 0.0)}
        facts: dict[str, Any] = ray.get(answer)
        told.append({"name": name, **count, **facts})
    ray.shutdown()
    keeps = not all(node["shares_state"] for node in told) and keeps_state(
        request["values"]
    )
    print(json.dumps({"facts": own_facts(), "nodes": told, "keeps_state": keeps}))


if __name__ == "__main__":
    main()
