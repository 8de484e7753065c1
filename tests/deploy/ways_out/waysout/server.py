"""Asks one node a message for each way out, and writes down what arrived."""

import json
import time

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    while not (nodes := sorted(grid.get_node_ids())):
        time.sleep(0.5)
    weight = np.ones(int(context.run_config["size"]), np.float32)
    arrived = []
    for number, way in enumerate(str(context.run_config["ways"]).split(","), start=1):
        content = RecordDict(
            {
                "arrays": ArrayRecord({"fc.weight": Array(weight)}),
                "config": ConfigRecord({"way": way}),
            }
        )
        while nodes[0] not in grid.get_node_ids():
            time.sleep(0.5)
        message = Message(content, nodes[0], "train", group_id=str(number))
        began = time.monotonic()
        patience = float(context.run_config["patience"])
        replies = list(grid.send_and_receive([message], timeout=patience))
        row = {"way": way, "seconds": time.monotonic() - began}
        for reply in replies:
            row |= arrived_as(reply)
        arrived.append(row)
        with open(str(context.run_config["output"]), "w") as file:
            json.dump(arrived, file)


def arrived_as(reply: Message) -> dict[str, object]:
    metadata = reply.metadata
    row: dict[str, object] = {"type": metadata.message_type, "group": metadata.group_id}
    row["reply"] = metadata.message_id
    if reply.has_error():
        return row | {"error": reply.error.code, "reason": reply.error.reason}
    return row | {"records": {name: said(r) for name, r in reply.content.items()}}


def said(record: ArrayRecord | MetricRecord | ConfigRecord) -> dict[str, object]:
    if not isinstance(record, ArrayRecord):
        return {name: repr(value) for name, value in record.items()}
    return {
        name: [array.dtype, list(array.shape), array.numpy().ravel()[:3].tolist()]
        for name, array in record.items()
    }
