"""The ServerApp: it pushes messages, and pulls until all have been answered."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def exchange(grid: Grid, message_type: str, content: RecordDict, server_round: int):
    """Return good replies by partition, and the codes of errors."""
    while len(node_ids := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    outstanding = set(
        grid.push_messages(
            grid.create_message(content, message_type, node_id, str(server_round))
            for node_id in node_ids
        )
    )
    good, codes = [], []
    while outstanding:
        for reply in grid.pull_messages(list(outstanding)):
            outstanding.remove(reply.metadata.reply_to_message_id)
            if reply.has_error():
                codes.append(reply.error.code)
            else:
                good.append(reply.content)
        time.sleep(0.05)
    return sorted(good, key=lambda content: content["metrics"]["partition"]), codes


@app.main()
def main(grid: Grid, context: Context) -> None:
    centre, history = np.zeros(()), []
    for server_round in range(1, context.run_config["num-server-rounds"] + 1):
        kind = "train.coarse" if server_round == 1 else "train.fine"
        content = RecordDict(
            {
                "model": ArrayRecord({"centre": Array(np.asarray(centre))}),
                "config": ConfigRecord(
                    {"server-round": server_round, "rate": 1 / server_round}
                ),
            }
        )
        replies, codes = exchange(grid, kind, content, server_round)
        centre = np.mean([reply["model"]["centre"].numpy() for reply in replies])
        print(f"round {server_round}: {len(replies)} replies, errors {codes}")
        history.append({"centre": float(centre), "replies": len(replies), "errors": codes})

    content["model"] = ArrayRecord({"centre": Array(np.asarray(centre))})
    replies, _ = exchange(grid, "evaluate.spread", content, 0)
    history.append({"spread": [dict(reply["metrics"]) for reply in replies]})
    Path("history.json").write_text(json.dumps(history))
