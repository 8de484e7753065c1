"""The ClientApp: it answers questions about its table, and trains nothing."""

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
REGIONS = ["north", "south", "west"]


def load_table(context: Context) -> pd.DataFrame:
    node = context.node_config
    rng = np.random.default_rng([node["partition-id"], node["num-partitions"]])
    rows = 200 + 50 * node["partition-id"]
    return pd.DataFrame(
        {
            "region": rng.choice(REGIONS, size=rows),
            "amount": rng.integers(1, 500, size=rows),
            "weight": rng.integers(40, 120, size=rows),
        }
    )


@app.query("range")
def find_range(msg: Message, context: Context):
    numbers = load_table(context).select_dtypes("number")
    metrics = {
        name: [int(column.min()), int(column.max())] for name, column in numbers.items()
    }
    return Message(RecordDict({"range": MetricRecord(metrics)}), reply_to=msg)


@app.query()
def query(msg: Message, context: Context):
    table = load_table(context)
    edges = msg.content["edges"].to_numpy_ndarrays()
    counts = [
        np.histogram(table[name], bins=bins)[0]
        for name, bins in zip(msg.content["columns"]["names"], edges, strict=True)
    ]

    regions = table.groupby("region")["amount"].agg(["sum", "count"]).reindex(REGIONS)
    metrics = {
        region: [int(row["sum"]), int(row["count"])] for region, row in regions.iterrows()
    }
    content = RecordDict({"counts": ArrayRecord(counts), "regions": MetricRecord(metrics)})
    return Message(content, reply_to=msg)
