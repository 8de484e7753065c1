"""FedAvg that anneals the learning rate and counts what is sent."""

from collections.abc import Iterable
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from lora_app.models import cosine_annealing


class FlowerTuneLora(FedAvg):
    def __init__(self, num_rounds, lrate_max, lrate_min, **kwargs):
        super().__init__(**kwargs)
        self.schedule = (num_rounds, lrate_max, lrate_min)
        self.megabytes = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["learning-rate"] = cosine_annealing(server_round - 1, *self.schedule)
        messages = super().configure_train(server_round, arrays, config, grid)
        self.track(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        self.track(replies)
        return super().aggregate_train(server_round, replies)

    def track(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.has_error():
                continue
            for record in message.content.array_records.values():
                self.megabytes += sum(len(a.data) for a in record.values()) / 1024**2
        log(INFO, "Communicated so far: %.4f MB", self.megabytes)
