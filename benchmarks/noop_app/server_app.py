"""Rounds of nothing, timed."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Send a model to all nodes and take one back, so many times."""
    config = context.run_config
    # Flower cuts arrays into pieces, and keeps and sends one of equal ones: none may be.
    drawn = np.random.default_rng(0).random(int(config["num-parameters"]), np.float32)
    model = Array(drawn)
    while len(nodes := list(grid.get_node_ids())) < int(config["num-nodes"]):
        time.sleep(0.2)
    seconds = []
    for server_round in range(1, int(config["num-rounds"]) + 1):
        start = time.monotonic()
        content = RecordDict(
            {
                "arrays": ArrayRecord({"model": model}),
                "config": ConfigRecord({"server-round": server_round}),
            }
        )
        sent = [Message(content, n, "train", group_id=str(server_round)) for n in nodes]
        replies = list(grid.send_and_receive(sent))
        model = Array(replies[0].content["arrays"]["model"].numpy() + np.float32(0.5))
        seconds.append(time.monotonic() - start)
    Path(str(config["output"])).write_text(json.dumps(seconds))
