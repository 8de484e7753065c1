"""The base classes carry the exchange patterns of all four methods.

Each pattern is a toy method that needs exactly what the paper's method needs: more than
one exchange in a round (FedEBA+), dependent exchanges without a shared model (FedAL),
partial payloads (filter decomposition), a private model beside the shared one (FedAKD).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from fedsuite.core.errors import RunError
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    Arrays,
    Reply,
    Request,
)
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.rounds.aggregation import weighted_mean
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.membership import sample_clients
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import ClientReply, Expected, spec_of
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import probe_model
from fedsuite.training.loop import (
    TrainingOptions,
)
from fedsuite.training.sent import USUAL
from fedsuite.training.store import FileStore, MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.strategies.fair.probing import assert_same

NUM_CLIENTS = 4


def split_of(client_id: int) -> Split:
    generator = torch_stream(7, "toy-data", 0, client_id)
    features = torch.randn(6 + client_id, 3, generator=generator)
    return Split(features, (features[:, 0] > 0).long())


def linear() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)


def grid_of(client_class: type[FederatedClient], num_nodes: int, store: Any) -> LocalGrid:
    def client_fn(context: Context, client_id: int) -> FederatedClient:
        data = split_of(client_id)
        return client_class(
            linear(),
            data,
            data,
            training=TrainingOptions(local_steps=2, batch_size=4),
            client_id=client_id,
            store=store,
        )

    app = make_client_app(client_fn, list(client_class.ACTIONS))
    return LocalGrid(app, num_nodes)


def run(
    strategy: FederatedStrategy,
    client_class: type[FederatedClient],
    *,
    num_nodes: int = NUM_CLIENTS,
    num_rounds: int = 3,
    store: Any = None,
    initial: Arrays | None = None,
) -> Arrays:
    store = store or MemoryStore()
    initial = model_arrays(linear()) if initial is None else initial
    with flower_identity():
        grid = grid_of(client_class, num_nodes, store)
        return to_arrays(strategy.start(grid, to_record(initial), num_rounds).arrays)


# ---- FedEBA+: a probe first


class ProbeFirst(FedAvg):
    """Asks for losses and gradients, then trains along the mean gradient."""

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        gradients = Expected({"gradient": spec_of(arrays)}, metrics=("loss",))
        probe = Exchange("query.probe", client_ids, {ARRAYS: arrays}, expected=gradients)
        replies = list(self.exchange(probe))
        self.losses = {reply.client_id: reply.metrics["loss"] for reply in replies}
        mean = weighted_mean(
            (reply.arrays["gradient"] for reply in replies), (1.0 for _ in replies)
        )
        assert mean is not None
        self.mean_gradient = mean
        return Exchange(
            "train",
            client_ids,
            {ARRAYS: arrays, "fair-gradient": mean},
            expected=Expected({ARRAYS: spec_of(arrays), "first-step": spec_of(arrays)}),
        )

    def begin_aggregation(self, arrays: Arrays) -> None:
        super().begin_aggregation(arrays)
        self.first_steps: dict[int, Arrays] = {}

    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        self.first_steps[reply.client_id] = reply.arrays["first-step"]


class ProbedClient(FederatedClient):
    SENDS: ClassVar = FederatedClient.SENDS | {"gradient", "first-step"}
    ACTIONS: ClassVar = {**FederatedClient.ACTIONS, "query.probe": "on_probe"}

    def on_probe(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        loss, gradient = probe_model(self.model, self.train_data)
        metrics = {NUM_EXAMPLES: len(self.train_data), "loss": loss}
        return Reply({"gradient": gradient}, metrics)

    def on_train(self, request: Request) -> Reply:
        self._fair = request.arrays["fair-gradient"]
        reply = super().on_train(request)
        step = {name: -0.1 * array for name, array in self._fair.items()}
        return Reply({**reply.arrays, "first-step": step}, reply.metrics)


@pytest.mark.parametrize("num_nodes", [4, 2, 1])
def test_probe_pattern_gives_the_same_bits_on_any_number_of_nodes(num_nodes: int) -> None:
    options: Any = {"identity": "partition", "num_clients": NUM_CLIENTS}
    reference, strategy = ProbeFirst(**options), ProbeFirst(**options)
    expected = run(reference, ProbedClient)
    assert_same(run(strategy, ProbedClient, num_nodes=num_nodes), expected)
    assert strategy.losses == reference.losses
    assert list(strategy.losses) == list(range(NUM_CLIENTS))


def test_probe_is_the_full_gradient_and_is_charged() -> None:
    strategy = ProbeFirst(min_available_nodes=NUM_CLIENTS)
    run(strategy, ProbedClient, num_rounds=1)
    gradients = [probe_model(linear(), split_of(k))[1] for k in range(NUM_CLIENTS)]
    for name, array in strategy.mean_gradient.items():
        mean = np.mean([gradient[name] for gradient in gradients], axis=0)
        np.testing.assert_allclose(array, mean, rtol=1e-6)
    size = 4 * (3 * 2 + 2)
    report = strategy.reports["train"]
    assert report.bytes_down == NUM_CLIENTS * (size + 2 * size)
    assert report.bytes_up == NUM_CLIENTS * (size + 2 * size)


def test_probe_happens_inside_flowers_dp_wrapper() -> None:
    plain, inner = ProbeFirst(min_available_nodes=4), ProbeFirst(min_available_nodes=4)
    wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, NUM_CLIENTS)
    expected = run(plain, ProbedClient)
    with flower_identity():
        grid = grid_of(ProbedClient, NUM_CLIENTS, MemoryStore())
        initial = to_record(model_arrays(linear()))
        # The wrapper clips every record of a reply against the model: those that are not
        # models must come through unchanged at a large norm.
        result = wrapped.start(grid, initial, num_rounds=3)
    assert inner.losses
    for name, array in to_arrays(result.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


def test_a_client_without_the_probe_is_named() -> None:
    strategy = ProbeFirst(min_available_nodes=NUM_CLIENTS)
    with pytest.raises(RunError, match=r"round 1: ProbeFirst: no handler for query\.probe"):
        run(strategy, FederatedClient, num_rounds=1)


def test_a_round_whose_probe_fails_keeps_the_model() -> None:
    class Failing(ProbedClient):
        def on_probe(self, request: Request) -> Reply:
            raise OSError("no disk")

    strategy = ProbeFirst(min_available_nodes=NUM_CLIENTS, max_failed_rounds=3)
    final = run(strategy, Failing, num_rounds=2)
    assert_same(final, model_arrays(linear()))
    assert strategy.judge.failed_rounds == 2
    reasons = {r.reason.partition(": ")[0] for r in strategy.reports["train"].rejections}
    assert reasons == {"query.probe"}


# ---- FedAL: tau exchanges, no model, different networks

TAU = 3
BATCH = 5


def public_batch(server_round: int, step: int) -> torch.Tensor:
    return torch.randn(BATCH, 3, generator=torch_stream(7, f"public-{step}", server_round))


class LogitsOnly(FederatedStrategy):
    """Local phase, then TAU dependent exchanges of logits, each client its own."""

    def _logits(self) -> Expected:
        return Expected({"logits": {"logits": ((BATCH, 2), "float32")}})

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        self.client_ids = client_ids
        return Exchange("train.local_phase", client_ids, expected=self._logits())

    def begin_aggregation(self, arrays: Arrays) -> None:
        self.logits: dict[int, Any] = {}

    def take(self, reply: ClientReply) -> None:
        self.logits[reply.client_id] = reply.arrays["logits"]["logits"]

    def aggregate(self, arrays: Arrays) -> Arrays | None:
        logits = self.logits
        for step in range(TAU):
            mean = np.mean(list(logits.values()), axis=0, dtype=np.float64).astype(
                np.float32
            )
            last = step == TAU - 1
            transfer = Exchange(
                "train.transfer",
                sorted(logits),
                shared={"mean-logits": {"logits": mean}},
                own={k: {"gradient": {"logits": own - mean}} for k, own in logits.items()},
                config={"step": step},
                expected=Expected() if last else self._logits(),
            )
            replies_now = list(self.exchange(transfer))
            if not last:
                logits = {r.client_id: r.arrays["logits"]["logits"] for r in replies_now}
        self.final_logits = logits
        return None


class BlackBoxClient(FederatedClient):
    SENDS: ClassVar = USUAL | {"logits"}
    KEEPS_STATE = True
    ACTIONS: ClassVar = {
        "train.local_phase": "on_local_phase",
        "train.transfer": "on_transfer",
        "evaluate": "on_evaluate",
    }

    def _begin(self, request: Request) -> None:
        state = self.load_state(request)
        if state is not None:
            load_arrays(self.model, state)

    def _answer(self, request: Request, step: int) -> Reply:
        metrics = {NUM_EXAMPLES: len(self.train_data)}
        stored = self.save_state(request, model_arrays(self.model))
        with torch.no_grad():
            logits = self.model(public_batch(request.server_round, step)).numpy().copy()
        arrays = {} if step == TAU else {"logits": {"logits": logits}}
        return Reply(arrays, {**metrics, **stored})

    def on_local_phase(self, request: Request) -> Reply:
        self._begin(request)
        self.train_locally(request)
        return self._answer(request, 0)

    def on_transfer(self, request: Request) -> Reply:
        self._begin(request)
        step = request.config["step"]
        assert isinstance(step, int)
        gradient = torch.from_numpy(request.arrays["gradient"]["logits"].copy())
        self.model(public_batch(request.server_round, step)).backward(gradient)
        with torch.no_grad():
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        self.model.zero_grad()
        return self._answer(request, step + 1)

    def on_evaluate(self, request: Request) -> Reply:
        self._begin(request)
        return self.evaluation()


@pytest.mark.parametrize("files", [False, True])
def test_logits_pattern_keeps_private_networks_in_the_store(
    files: bool, tmp_path: Any
) -> None:
    options: Any = {"identity": "partition", "num_clients": NUM_CLIENTS}
    stores = [MemoryStore(), FileStore(tmp_path) if files else MemoryStore()]
    finals = []
    for store, num_nodes in zip(stores, (4, 2), strict=True):
        strategy = LogitsOnly(**options)
        with flower_identity():
            grid = grid_of(BlackBoxClient, num_nodes, store)
            strategy.start(grid, to_record({}), 2)
        finals.append(strategy.final_logits)
        assert strategy.client_versions == dict.fromkeys(range(NUM_CLIENTS), f"2.{1 + TAU}")
    for client_id, logits in finals[0].items():
        np.testing.assert_array_equal(logits, finals[1][client_id])


def test_networks_of_different_shapes_take_part() -> None:
    networks = [linear(), torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))]
    store = MemoryStore()

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        data = split_of(client_id)
        return BlackBoxClient(
            networks[client_id % 2], data, data, client_id=client_id, store=store
        )

    strategy = LogitsOnly(min_available_nodes=2)
    with flower_identity():
        grid = LocalGrid(make_client_app(client_fn, list(BlackBoxClient.ACTIONS)), 2)
        strategy.start(grid, to_record({}), 2)
    assert len(strategy.final_logits) == 2
    assert not strategy.reports["train"].rejections


# ---- decomposition: only part of the arrays


class PartOnly(FedAvg):
    """Sends and averages the bias alone, but in every second round everything."""

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        names = list(arrays) if self.server_round % 2 else ["bias"]
        part = {name: arrays[name] for name in names}
        # A client that was never asked lacks the rest: it alone is sent it.
        new = [k for k in client_ids if k not in self.client_versions]
        rest = {name: array for name, array in arrays.items() if name not in part}
        return Exchange(
            "train",
            client_ids,
            {ARRAYS: part},
            own={k: {"rest": rest} for k in new if rest},
            expected=Expected({ARRAYS: spec_of(part)}),
        )

    def aggregate(self, arrays: Arrays) -> Arrays | None:
        mean = super().aggregate(arrays)
        return None if mean is None else {**arrays, **mean}


class PartClient(FederatedClient):
    KEEPS_STATE = True

    def on_train(self, request: Request) -> Reply:
        held = self.load_state(request) or {}
        received = request.arrays[ARRAYS]
        load_arrays(self.model, {**held, **request.arrays.get("rest", {}), **received})
        whole = model_arrays(self.model)
        metrics = self.train_metrics(self.train_locally(request))
        part = model_arrays(self.model, received)
        return Reply({ARRAYS: part}, {**metrics, **self.save_state(request, whole)})


def test_partial_payload_pattern_sends_only_what_the_round_needs() -> None:
    options: Any = {"identity": "partition", "num_clients": NUM_CLIENTS}
    strategy = PartOnly(clients_per_round=3, **options)
    ups = []

    class Watch(PartOnly):
        def finish_round(self) -> None:
            report = self.reports["train"]
            ups.append((report.bytes_up, report.bytes_down))

    watched = Watch(clients_per_round=3, **options)
    expected = run(strategy, PartClient, num_rounds=4)
    assert_same(run(watched, PartClient, num_rounds=4, num_nodes=2), expected)
    whole, part = 4 * (6 + 2), 4 * 2
    assert [up for up, _ in ups] == [3 * whole, 3 * part, 3 * whole, 3 * part]
    # In round 2 those that were not asked in round 1 are sent the rest as well.
    asked = [
        set(sample_clients(range(NUM_CLIENTS), 3, 0, t, "sample-train")) for t in (1, 2)
    ]
    new = len(asked[1] - asked[0])
    assert new > 0
    assert [down for _, down in ups[:2]] == [3 * whole, 3 * part + new * (whole - part)]


# ---- FedAKD: a private model as well


class TwoModels(FederatedClient):
    SENDS: ClassVar = FederatedClient.SENDS | {"local-accuracy"}
    KEEPS_STATE = True

    def on_train(self, request: Request) -> Reply:
        private = self.load_state(request) or request.arrays[ARRAYS]
        load_arrays(self.model, private)
        self.train_locally(request, purpose="private")
        new_private = model_arrays(self.model)
        load_arrays(self.model, request.arrays[ARRAYS])
        metrics = self.train_metrics(self.train_locally(request, purpose="shared"))
        stored = self.save_state(request, new_private)
        return Reply({ARRAYS: model_arrays(self.model)}, {**metrics, **stored})

    def on_evaluate(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        shared = self.evaluation()
        load_arrays(self.model, self.load_state(request) or request.arrays[ARRAYS])
        own = self.evaluation()
        return Reply(metrics={**shared.metrics, "local-accuracy": own.metrics["accuracy"]})


def test_private_model_pattern_never_sends_the_private_model() -> None:
    options: Any = {"identity": "partition", "num_clients": NUM_CLIENTS}
    store, other = MemoryStore(), MemoryStore()
    strategy = FedAvg(**options)
    expected = run(strategy, TwoModels, store=store)
    assert_same(run(FedAvg(**options), TwoModels, num_nodes=2, store=other), expected)
    for client_id, version in strategy.client_versions.items():
        private = store.load(client_id, version)
        assert_same(other.load(client_id, version), private)
        assert any((private[name] != expected[name]).any() for name in expected)
    assert {"accuracy", "local_accuracy"} <= set(strategy.reports["evaluate"].rows[0])
