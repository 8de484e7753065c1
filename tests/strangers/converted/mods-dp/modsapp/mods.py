import time
from logging import INFO

from flwr.app import MessageType
from flwr.common.logger import log


def timing_mod(msg, context, call_next):
    """Log each call and count a node's trainings in its state."""
    start = time.perf_counter()
    reply = call_next(msg, context)
    if msg.metadata.message_type.startswith("train") and not reply.has_error():
        from flwr.app import MetricRecord

        state = context.state.metric_records.setdefault(
            "count", MetricRecord({"trained": 0})
        )
        state["trained"] += 1
        reply.content.metric_records["metrics"]["seconds"] = time.perf_counter() - start
        reply.content.metric_records["metrics"]["times-trained"] = state["trained"]
        log(
            INFO,
            "node %s trained %s times",
            context.node_config["partition-id"],
            state["trained"],
        )
    return reply
