"""A loop by hand around the code of stock Flower's clients: what Flower's rounds add to.

    python -m peers.hand_loop PREPARED OUTPUT

Clients, their mini-batches and the server's evaluation are those of ``peers.client_app``
and ``peers.server_app``, in one process, without a message.
"""

import random
import sys
from pathlib import Path

import torch

from peers.client_code import State, prepared_in, trained
from peers.prepared import Prepared, end_round, evaluate, save_model


def run(prepared: Prepared, output: Path) -> State:
    """Train and return the final parameters."""
    settings = prepared.settings
    model, rows = prepared.model(), prepared.test()
    state = model.state_dict()
    for server_round in range(1, settings["num-rounds"] + 1):
        chosen = random.sample(
            range(settings["num-clients"]), settings["clients-per-round"]
        )
        sums = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        total = 0
        for client in chosen:
            theirs, _, count = trained(prepared, state, client)
            for name, tensor in theirs.items():
                sums[name] += tensor * count
            total += count
        state = {name: value / total for name, value in sums.items()}
        if prepared.is_evaluated(server_round):
            model.load_state_dict(state)
            evaluate(model, rows)
        end_round(output, server_round)
    return state


if __name__ == "__main__":
    save_model(Path(sys.argv[2]), run(prepared_in(sys.argv[1]), Path(sys.argv[2])))
