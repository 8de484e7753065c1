"""The ServerApp: a loop of its own over the Grid, no strategy, nothing returned."""

import random
import time
from logging import INFO

import numpy as np
import pandas as pd
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
MIN_NODES = 2


def wait_for_nodes(grid: Grid) -> list[int]:
    while len(node_ids := list(grid.get_node_ids())) < MIN_NODES:
        log(INFO, "Waiting for nodes to connect...")
        time.sleep(1)
    return node_ids


def ask(grid, node_ids, message_type, content, group_id):
    messages = [
        Message(
            content=content,
            message_type=message_type,
            dst_node_id=node_id,
            group_id=group_id,
        )
        for node_id in node_ids
    ]
    replies = list(grid.send_and_receive(messages))
    log(INFO, "Received %s/%s answers", len(replies), len(messages))
    return [reply.content for reply in replies if not reply.has_error()]


@app.main()
def main(grid: Grid, context: Context) -> None:
    node_ids = wait_for_nodes(grid)

    answers = ask(grid, node_ids, "query.range", RecordDict(), "0")
    ranges = pd.DataFrame([dict(answer["range"]) for answer in answers])
    edges = {
        name: np.linspace(
            min(low for low, _ in ranges[name]),
            max(high for _, high in ranges[name]),
            context.run_config["num-bins"] + 1,
        )
        for name in ranges.columns
    }
    content = RecordDict(
        {
            "edges": ArrayRecord(list(edges.values())),
            "columns": ConfigRecord({"names": list(edges)}),
        }
    )

    for server_round in range(1, context.run_config["num-server-rounds"] + 1):
        log(INFO, "")
        log(INFO, "Round %s", server_round)
        share = int(len(node_ids) * context.run_config["fraction-sample"])
        sampled = random.sample(node_ids, share)
        answers = ask(grid, sampled, MessageType.QUERY, content, str(server_round))

        counts = np.sum(
            [answer["counts"].to_numpy_ndarrays() for answer in answers], axis=0
        )
        histogram = pd.DataFrame(counts.T, columns=list(edges))
        regions = sum(pd.DataFrame(dict(answer["regions"])) for answer in answers).T
        regions.columns = ["sum", "count"]
        assert (histogram.sum() == regions["count"].sum()).all()

        print(regions.assign(mean=regions["sum"] / regions["count"]))
        histogram.to_csv(f"histogram_{server_round}.csv")
        regions.to_csv(f"regions_{server_round}.csv")
