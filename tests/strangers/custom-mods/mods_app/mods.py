"""Mods of this app."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable


def timing_mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep this node's seconds and calls by kind of message; report the calls."""
    started = time.perf_counter()
    reply = call_next(msg, context)
    kind = msg.metadata.message_type
    spent = context.state.get("timing", MetricRecord())
    spent[f"{kind}-seconds"] = (
        spent.get(f"{kind}-seconds", 0.0) + time.perf_counter() - started
    )
    spent[f"{kind}-calls"] = spent.get(f"{kind}-calls", 0) + 1
    context.state["timing"] = spent
    if reply.has_content():
        reply.content["metrics"]["calls"] = spent[f"{kind}-calls"]
    return reply


def clip_update_mod(
    msg: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Shorten an update that is longer than the run config allows."""
    before = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    reply = call_next(msg, context)
    after = reply.content["arrays"]
    update = {name: array.numpy() - before[name] for name, array in after.items()}
    norm = float(np.sqrt(sum((part**2).sum() for part in update.values())))
    scale = min(1.0, context.run_config["largest-update"] / max(norm, 1e-12))
    reply.content["arrays"] = ArrayRecord(
        {name: Array(before[name] + scale * update[name]) for name in before}
    )
    reply.content["metrics"]["clipped"] = int(scale < 1)
    return reply
