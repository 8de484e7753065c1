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
    """Send a model to all nodes, or to one in turns, and take one back, so many times."""
    config = context.run_config
    # Flower cuts arrays into pieces, and keeps and sends one of equal ones: none may be.
    drawn = np.random.default_rng(0).random(int(config["num-parameters"]), np.float32)
    parts = np.array_split(drawn, int(config.get("num-arrays", 1)))
    model = {f"model-{place}": Array(part) for place, part in enumerate(parts)}
    while len(nodes := list(grid.get_node_ids())) < int(config["num-nodes"]):
        time.sleep(0.2)
    takes_turns = bool(config.get("takes-turns", 0))
    seconds: list[float] = []
    asked: list[int] = []
    for server_round in range(1, int(config["num-rounds"]) + 1):
        start = time.monotonic()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model),
                "config": ConfigRecord({"server-round": server_round}),
            }
        )
        turn = [sorted(nodes)[server_round % len(nodes)]] if takes_turns else nodes
        sent = [Message(content, n, "train", group_id=str(server_round)) for n in turn]
        replies = list(grid.send_and_receive(sent))
        model = {
            name: Array(array.numpy() + np.float32(0.5))
            for name, array in replies[0].content["arrays"].items()
        }
        seconds.append(time.monotonic() - start)
        asked.append(int(replies[0].content["metrics"]["num-examples"]))
        told = list(zip(asked, seconds, strict=True)) if takes_turns else seconds
        Path(str(config["output"])).write_text(json.dumps(told))
