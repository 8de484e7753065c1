"""A ClientApp that looks for ways out of a site, one for each message.

A way that finds something puts it into a record ``seen``, which a policy for looking lets
out, or writes ``reached`` where the test looks.
"""

import contextlib
import glob
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

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
from flwr.clientapp import ClientApp

app = ClientApp()
Way = Callable[[Message, Context], Message]
WAYS: dict[str, Way] = {}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


@app.train()
def train(message: Message, context: Context) -> Message:
    return WAYS[str(message.content["config"]["way"])](message, context)


def reply(message: Message, seen: object = None, **metrics: object) -> Message:
    numbers = {"num-examples": 100, "loss": 0.123456789, **metrics}
    weight = Array(np.full(10, 2.0, np.float32))
    content = RecordDict(
        {"arrays": ArrayRecord({"fc.weight": weight}), "metrics": MetricRecord(numbers)}
    )
    if seen is not None:
        content["seen"] = ConfigRecord({"seen": str(seen)[:400]})
    return Message(content, reply_to=message)


def word(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def call(path: str, body: bytes = b"") -> object:
    """Call the SuperNode's runtime API by hand, with the app's own token."""
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    own = RuntimeVersionMetadata.from_local_component("flwr-clientapp")
    headers = {**dict(own.as_metadata()), "content-type": "application/protobuf"}
    headers["flwr-task-token"] = word("--token")
    url = f"http://{word('--runtime-api-address')}/v1/runtime/{path}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=5
        ) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError) as error:
        return f"{error}"


@way
def honest(message: Message, context: Context) -> Message:
    answer = reply(message)
    came = message.content["arrays"]["fc.weight"].numpy()
    answer.content["arrays"] = ArrayRecord({"fc.weight": Array(came + 1)})
    return answer


@way
def few_rows(message: Message, context: Context) -> Message:
    return reply(message, **{"num-examples": 4})


@way
def more_records(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["leak"] = ArrayRecord({"fc.weight": Array(np.zeros(9, np.float32))})
    return answer


@way
def more_arrays(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["arrays"]["rows.weight"] = Array(np.zeros(9, np.float32))
    return answer


@way
def longer_array(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["arrays"]["fc.weight"] = Array(np.zeros(11, np.float32))
    return answer


@way
def text_array(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["arrays"] = ArrayRecord({"fc.weight": Array(np.array(["a row"]))})
    return answer


@way
def wide_dtype(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["arrays"]["fc.weight"] = Array(np.zeros(10, np.float64))
    return answer


@way
def not_a_number(message: Message, context: Context) -> Message:
    answer = reply(message)
    payload = np.full(10, 0x7FC0BEEF, np.uint32).view(np.float32)
    answer.content["arrays"]["fc.weight"] = Array(payload)
    return answer


@way
def declared_dtype(message: Message, context: Context) -> Message:
    answer = reply(message)
    array = Array(np.full(10, 2.0, np.float32))
    array.dtype = "float32; patient 7"
    array.shape = (112, 105, 120)
    answer.content["arrays"] = ArrayRecord({"fc.weight": array})
    return answer


@way
def metric_name(message: Message, context: Context) -> Message:
    return reply(message, **{"patient-7-positive": 1.0})


@way
def metric_list(message: Message, context: Context) -> Message:
    return reply(message, accuracy=[1.0, 2.0])


@way
def metric_digits(message: Message, context: Context) -> Message:
    return reply(message, accuracy=0.1234567890123456)


@way
def huge_count(message: Message, context: Context) -> Message:
    return reply(message, **{"num-examples": 2**62 + 7})


@way
def config_text(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.content["followed"] = ConfigRecord({"way": "row 7: 43, male, positive"})
    return answer


@way
def error_text(message: Message, context: Context) -> Message:
    raise RuntimeError("row 7: 43, male, positive")


@way
def metadata(message: Message, context: Context) -> Message:
    answer = reply(message)
    answer.metadata.__dict__["_group_id"] = "patient 7"
    answer.metadata.message_type = "train.patient_seven"
    return answer


@way
def second_reply(message: Message, context: Context) -> Message:
    """Push a reply by hand, then return another one."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import push_message

    client = RuntimeHttpClient.from_server_address(
        server_address=word("--runtime-api-address"),
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(word("--token")),
        ],
    )
    mine = reply(message, accuracy=0.5)
    mine.metadata.__dict__["_group_id"] = "smuggled"
    push_message(client, mine, context)
    return reply(message, accuracy=0.75)


@way
def create_task(message: Message, context: Context) -> Message:
    """Have another program started, outside any shelter of the app."""
    from flwr.proto.runtime_pb2 import CreateTaskRequest

    wish = CreateTaskRequest(type="flwr-connector", connector_ref="web_fetch")
    return reply(message, call("create-task", wish.SerializeToString()))


@way
def acquire_task(message: Message, context: Context) -> Message:
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    wish = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    return reply(message, call("acquire-task", wish.SerializeToString()))


@way
def push_logs(message: Message, context: Context) -> Message:
    return reply(message, call("push-logs", b"row 7"))


@way
def change_config(message: Message, context: Context) -> Message:
    context.node_config["data"] = "/somewhere/else"
    return reply(message)


@way
def see_config(message: Message, context: Context) -> Message:
    return reply(message, dict(context.node_config).get("data", "unchanged"))


@way
def other_processes(message: Message, context: Context) -> Message:
    seen = []
    # By their numbers too, where the folder cannot be listed.
    paths = {f"/proc/{pid}/cmdline" for pid in range(1, os.getpid())}
    for path in paths | set(glob.glob("/proc/[0-9]*/cmdline")):
        try:
            with open(path, "rb") as file:
                words = file.read().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "flower-" in words or "fedsuite.deploy" in words:
            seen.append(words[-60:])
    return reply(message, seen or "none")


@way
def node_key(message: Message, context: Context) -> Message:
    """Look for key, secret and ledger beside the folder of what clients keep."""
    folder = str(context.node_config["folder"])
    seen = []
    with contextlib.suppress(OSError):
        seen += set(os.listdir(folder)) - {"state"}
    for name in ("key", "superexec.secret", "ledger.jsonl", "policy.toml"):
        try:
            open(f"{folder}/{name}", "rb").close()
            seen.append(name)
        except OSError:
            pass
        try:
            os.truncate(f"{folder}/{name}", 0)
            seen.append(f"cut {name}")
        except OSError:
            pass
    return reply(message, seen or "none")


@way
def other_ports(message: Message, context: Context) -> Message:
    open_ports = []
    for name in ("control", "runtime"):
        try:
            place = ("127.0.0.1", int(context.node_config[name]))
            socket.create_connection(place, timeout=3).close()
            open_ports.append(name)
        except OSError:
            pass
    return reply(message, open_ports or "none")


@way
def abstract_socket(message: Message, context: Context) -> Message:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"\0{context.node_config['abstract']}")
    except OSError:
        return reply(message, "none")
    return reply(message, "open")


@way
def named_socket(message: Message, context: Context) -> Message:
    """Send to a socket that has a name, as a machine's log has, from half a pair too."""
    place, seen = str(context.node_config["named"]), []
    for make in (
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0],
    ):
        try:
            make().sendto(b"row 7", place)
            seen.append("sent")
        except OSError:
            pass
    return reply(message, seen or "none")


@way
def other_signals(message: Message, context: Context) -> Message:
    """Signal processes of this user, outside."""
    seen = []
    for pid in {os.getppid(), int(context.node_config["process"])} - {0, 1}:
        try:
            os.kill(pid, 0)
            seen.append(pid)
        except OSError:
            pass
    return reply(message, seen or "none")


@way
def name_lookup(message: Message, context: Context) -> Message:
    """Ask for a name: even a refused look-up would carry it out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.sendto(b"row-7", ("127.0.0.1", int(context.node_config["datagrams"])))
    except OSError as error:
        return reply(message, error)
    return reply(message, "sent")


@way
def leave_file(message: Message, context: Context) -> Message:
    seen = "none"
    for folder in ("/usr/lib", str(context.node_config["left"]), sys.prefix):
        try:
            with open(f"{folder}/fedsuite-way-out", "w") as file:
                file.write("row 7")
            seen = folder
        except OSError:
            pass
    return reply(message, seen)


@way
def leave_process(message: Message, context: Context) -> Message:
    """Leave a process behind that goes on after the message."""
    words = f"sleep 3; echo row > {context.node_config['left']}/process; sleep 60"
    with contextlib.suppress(PermissionError):
        subprocess.Popen(["sh", "-c", words], start_new_session=True)
    return reply(message)


@way
def environment(message: Message, context: Context) -> Message:
    secrets = [name for name in os.environ if "SECRET" in name]
    return reply(message, secrets or "none")


@way
def too_slow(message: Message, context: Context) -> Message:
    time.sleep(600)
    return reply(message)
