"""Seconds of a round through a site's relay, beside those of a node without a policy.

    python benchmarks/relay.py --shelter landlock --seconds 3 10 --pairs 10

A federation as `fedsuite deploy` runs it, on this machine, has two SuperNodes: one with a
relay and the default policy, one without. A Flower app asks them in turns, so that other
work on the machine meets both alike. Its clients send back as many numbers as a ResNet-18
has, each changed, in one array, as fedsuite packs a model, and use the processor for so
many seconds in place of training. The first round of each node is left out. A ratio is that
of the medians; its range that of the middle half of medians of pairs drawn again.
"""

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsuite.deploy.folders import POLICY, NodeFolder
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.deploy.relay.policy import default_text
from fedsuite.engines.flower import in_world
from fedsuite.engines.processes import World
from fedsuite.engines.staging import stage_app

HERE = Path(__file__).parent
RESNET_18 = 1, 11_182_430
"""Arrays and numbers of the network with ten classes, packed; by themselves it has 122."""

LEFT_OUT = 1
RELAYED = 1
"""The node with a relay, by its place."""


def with_relay(federation: LocalFederation, shelter: str) -> None:
    """Give one node of a federation that has not started the default policy."""
    node = federation.nodes[RELAYED]
    text = default_text().replace('shelter = "bwrap"', f'shelter = "{shelter}"')
    (node.path / POLICY).write_text(text)
    loaded = NodeFolder.load(node.path)
    federation.nodes[RELAYED] = replace(loaded, preload=node.preload)


def pairs_of(
    federation: LocalFederation, folder: Path, config: dict[str, float | str]
) -> list[tuple[float, float]]:
    """Return seconds of rounds in turns, without and with a relay."""
    folder.mkdir()
    output = folder / "seconds.json"
    app = stage_app(
        folder / "app", {**config, "output": str(output)}, package=HERE / "noop_app"
    )
    federation.run_app(app, lambda line: None)
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for own, spent in json.loads(output.read_text()):
        seconds[own - 1].append(spent)
    pairs = zip(seconds[1 - RELAYED], seconds[RELAYED], strict=True)
    return list(pairs)[LEFT_OUT:]


def ratio(pairs: np.ndarray) -> float:
    """Return the ratio of the medians of two columns."""
    without, through = np.median(pairs, axis=0)
    return float(through / without)


def row(seconds: float, pairs: list[tuple[float, float]]) -> str:
    """Return a line of the table."""
    columns = [
        f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})"
        for column in zip(*pairs, strict=True)
    ]
    draws = np.random.default_rng(0).integers(len(pairs), size=(2000, len(pairs)))
    ratios = [ratio(np.array(pairs)[drawn]) for drawn in draws]
    low, high = np.quantile(ratios, [0.25, 0.75])
    load = os.getloadavg()[0]
    return (
        f"| {seconds:g} | {len(pairs)} | {' | '.join(columns)} "
        f"| {ratio(np.array(pairs)):.2f} ({low:.2f} to {high:.2f}) | {load:.1f} |"
    )


def main() -> None:
    """Run the benchmark and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shelter", choices=["bwrap", "landlock", "none"], default="bwrap")
    parser.add_argument("--seconds", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--size", type=int, nargs=2, default=RESNET_18)
    arguments = parser.parse_args()
    arrays, numbers = arguments.size
    print("| trained for, s | pairs | without, s | relay, s | ratio | load |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for seconds in arguments.seconds:
        config: dict[str, float | str] = {
            "num-nodes": 2,
            "num-rounds": 2 * (LEFT_OUT + arguments.pairs),
            "num-arrays": arrays,
            "num-parameters": numbers,
            "train-seconds": seconds,
            "takes-turns": 1,
        }

        def drive(world: World, config: dict[str, float | str] = config) -> None:
            # One run of a federation: Flower's SuperExec ends at an answer 500, as a busy
            # SuperLink gives ("database is locked"), and the next run would never begin.
            federation = LocalFederation(world, world.folder / "federation", 2)
            with_relay(federation, arguments.shelter)
            federation.start()
            pairs = pairs_of(federation, world.folder / "run", config)
            print(row(float(config["train-seconds"]), pairs), flush=True)

        in_world(drive)


if __name__ == "__main__":
    main()
