"""Means of FedPer, FedRep and LG-FedAvg over what is shared, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.fedper import FedPer
from fedsuite.strategies.personal.fedrep import FedRep
from fedsuite.strategies.personal.lg_fedavg import LGFedAvg
from tests.helpers import aggregated


def replies_of(*bodies: list[float]) -> Any:
    for client, (values, count) in enumerate(zip(bodies, (10, 30), strict=True)):
        yield ClientReply(client, {ARRAYS: {"body": np.array(values)}}, {}, count)


GLOBAL: Arrays = {"body": np.zeros(2), "head": np.ones(2)}


def test_golden_means() -> None:
    """n = (10, 30): by size (2.5, 5), plainly (2, 4); what is not shared stays."""
    groups = ParameterGroups(head=("head",), other=("body",), layers=(("head",), ("body",)))
    for kind, expected in ((FedPer, [2.5, 5]), (FedRep, [2.5, 5]), (LGFedAvg, [2, 4])):
        found = aggregated(kind(groups=groups), GLOBAL, replies_of([1.0, 2.0], [3.0, 6.0]))
        assert found is not None
        assert found["body"].tolist() == expected
        assert found["head"] is GLOBAL["head"]


def test_server_rate_acts_on_the_shared_part() -> None:
    groups = ParameterGroups(head=("head",), other=("body",))
    half = FedPer(groups=groups, server_learning_rate=0.5)
    found = aggregated(half, GLOBAL, replies_of([1.0, 2.0], [3.0, 6.0]))
    assert found is not None
    assert [a.tolist() for a in found.values()] == [[1.25, 2.5], [1, 1]]


def test_lg_leaves_out_clients_without_examples() -> None:
    groups = ParameterGroups(head=(), other=("body",), layers=(("body",),))
    replies = (
        replace(r, num_examples=30 * r.client_id) for r in replies_of([9, 9], [1, 2])
    )
    found = aggregated(LGFedAvg(groups=groups), {"body": np.zeros(2)}, replies)
    assert found is not None
    assert found["body"].tolist() == [1, 2]
