"""Stock Flower: its simulation, its FedAvg, one SuperNode a client.

    python -m peers.stock_flower PREPARED OUTPUT

Started as fedsuite starts its own runs in Flower's simulation: SuperLink, ``flwr run``.
"""

import sys
from pathlib import Path

from fedsuite.engines.ray import run_ray
from peers.prepared import Prepared


def run(prepared: Path, output: Path) -> None:
    """Run the app of this package."""
    run_ray(
        {"prepared": str(prepared), "output": str(output)},
        num_supernodes=Prepared(prepared).settings["num-clients"],
        package=Path(__file__).parent,
    )


if __name__ == "__main__":
    run(*(Path(argument).resolve() for argument in sys.argv[1:]))
