"""Optimisers without torch's compiler: torch's own steps, bit for bit."""

import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import nn

from fedsuite.training.optimizers import PlainAdam, PlainSGD

OPTIONS = [
    (PlainSGD, torch.optim.SGD, {"lr": 0.1}),
    (PlainSGD, torch.optim.SGD, {"lr": 0.1, "fused": True}),
    (PlainSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "fused": True}),
    (PlainSGD, torch.optim.SGD, {"lr": 0.1, "maximize": True, "fused": True}),
    (
        PlainSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "fused": True},
    ),
    (PlainAdam, torch.optim.Adam, {"lr": 0.01, "fused": True}),
    (PlainAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
]


def trained(kind, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = kind(model.parameters(), **options)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 5)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), optimizer


@pytest.mark.parametrize(("plain", "torchs", "options"), OPTIONS)
def test_the_steps_have_the_bits_of_torchs_own(plain, torchs, options):
    found, optimizer = trained(plain, options)
    expected, own = trained(torchs, options)
    assert torch.equal(found, expected)
    held = [list(state.values()) for state in optimizer.state.values()]
    expected_held = [list(state.values()) for state in own.state.values()]
    for ours, theirs in zip(held, expected_held, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("kind", [PlainSGD, PlainAdam])
def test_a_step_is_no_part_of_a_graph(kind):
    weight = nn.Parameter(torch.ones(2))
    optimizer = kind([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    assert weight.is_leaf and torch.is_grad_enabled()
    optimizer.zero_grad()
    assert weight.grad is None


def test_a_hook_of_a_step_is_called():
    weight = nn.Parameter(torch.ones(2))
    optimizer = PlainSGD([weight], lr=0.5)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(True))
    optimizer.step()
    assert called == [True]


MESSAGES = """
import sys
from itertools import product
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fedsuite.running import node_app as client_app
from fedsuite.experiment import data_and_models
from fedsuite.experiment.experiment import Experiment
from fedsuite.models.arrays import model_arrays
from fedsuite.messages.array_records import to_record

cases = product(["fedavg", "fedprox"], ["sgd", "adam"])
for number, (method, optimizer) in enumerate(cases):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = number, 1, 1
    values = {"method": method, "optimizer": optimizer, "learning-rate": 0.1}
    values |= {"num-clients": 2, "device": "cpu"}
    experiment = Experiment.from_values(values)
    node = {"partition-id": 0, "num-partitions": 2}
    context = Context(number, 5, node, RecordDict(), dict(experiment.values))
    data = data_and_models.federated_data(experiment)
    arrays = to_record(model_arrays(data_and_models.network_model(experiment, data)))
    config = ConfigRecord({"server-round": 1, "client-ids": [0], "proximal-mu": 0.1})
    content = RecordDict({"arrays": arrays, "config": config})
    reply = client_app.app(Message(content, 5, "train"), context)
    assert not reply.has_error(), reply.error
    loaded = {name for name in sys.modules if name.startswith("fedsuite.strategies.")}
    print(method, optimizer, "torch._dynamo" in sys.modules)
    print("fedsuite.strategies.distillation.fedal" in loaded)
"""


def test_a_process_that_answers_messages_loads_no_compiler():
    """Nor the strategies of methods that the runs do not use."""
    words = [sys.executable, "-c", MESSAGES]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    told = product(["fedavg", "fedprox"], ["sgd", "adam"])
    expected = [word for pair in told for word in (*pair, "False", "False")]
    assert answer.stdout.split() == expected, answer.stderr
