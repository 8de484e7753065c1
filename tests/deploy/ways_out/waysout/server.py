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
        message = Message(content, nodes[0], "train", group_id=str(number))
        began = time.monotonic()
        (reply,) = grid.send_and_receive([message], timeout=120)
        row = {"way": way, "seconds": time.monotonic() - began}
        row |= {"type": reply.metadata.message_type, "group": reply.metadata.group_id}
        if reply.has_error():
            row |= {"error": reply.error.code, "reason": reply.error.reason}
        else:
            row["records"] = {name: said(r) for name, r in reply.content.items()}
        arrived.append(row)
        with open(str(context.run_config["output"]), "w") as file:
            json.dump(arrived, file)


def said(record: ArrayRecord | MetricRecord | ConfigRecord) -> dict[str, object]:
    if not isinstance(record, ArrayRecord):
        return {name: repr(value) for name, value in record.items()}
    return {
        name: [array.dtype, list(array.shape), array.numpy().ravel()[:3].tolist()]
        for name, array in record.items()
    }
