"""A tiny app for Flower's programs, odd values to hand it, and what it left behind."""

import os
from pathlib import Path

ODD_VALUES: dict[str, bool | int | float | str] = {
    "yes": True,
    "no": False,
    "small": 1e-05,
    "precise": 0.1 + 0.2,
    "whole": 3.0,
    "negative": -7,
    "empty": "",
    "quotes": "a'b\"c",
    "backslash": "C:\\new\\",
    "lines": "one\ntwo\r\n\tthree",
    "unicode": "Größe 分割 \U0001f338",
    "pairs": "x=1 y='2' # no comment",
    "table": '[a]\nb = """',
    "number-like": "1e-05",
}

SERVER_APP = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from tiny_app.shared import GREETING

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = dict(context.run_config)
    report = Path(config["report"])
    facts = {"config": config, "folder": os.getcwd(), "partitions": []}
    facts["greeting"] = GREETING
    report.write_text(json.dumps(facts))
    print("the ServerApp has begun", flush=True)
    if config["fail"]:
        raise RuntimeError(config["fail"])
    while len(nodes := sorted(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.05)
    content = RecordDict({"config": ConfigRecord({"sleep": config["sleep"]})})
    messages = [Message(content, node, "train") for node in nodes]
    for reply in grid.send_and_receive(messages):
        facts["partitions"].append(dict(reply.content["answer"]))
    report.write_text(json.dumps(facts))
"""

CLIENT_APP = """
import os, time
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from tiny_app.shared import GREETING

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(message.content["config"]["sleep"])
    answer = {key: value for key, value in context.node_config.items()}
    answer |= {"text": context.run_config["quotes"], "greeting": GREETING}
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)
"""


def processes_of(folder: str) -> list[str]:
    """Living processes that stand in a folder or were started with it in sight."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            seen += os.readlink(entry / "cwd").encode()
        except OSError:
            continue
        if folder.encode() in seen:
            found.append(f"{entry.name} {seen[:200]!r}")
    return found
