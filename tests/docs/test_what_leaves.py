"""What leaves a site: no reply holds more than its class names, and a page says all."""

from collections.abc import Mapping
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest

from fedsuite.clients import FedAvgClient, FedPACClient
from fedsuite.core.errors import RunError
from fedsuite.core.registry import METHODS
from fedsuite.messages.records import ARRAYS, NUM_EXAMPLES, Reply, Request
from fedsuite.training import base
from fedsuite.training.sent import OF_ANY_METHOD, may_send, refuse_undeclared, sent_names
from tests.docs import pages  # noqa: F401  puts docs/ on the path
from tests.helpers import Matrix, play, samples


def test_the_page_has_the_generated_tables() -> None:
    from what_leaves import PAGE, with_table

    assert with_table(PAGE.read_text()) == PAGE.read_text(), "run `make config`"
    with pytest.raises(SystemExit, match="lacks the line"):
        with_table("no marks")


def test_the_page_has_words_for_every_name_and_for_no_other() -> None:
    from what_leaves import declared, described

    assert {n for names in declared().values() for n in names} == described()


def test_methods_that_tell_of_classes_say_so() -> None:
    """By the names of arrays: who sends counts is in bold."""
    from what_leaves import declared, rendered

    rows = {line for line in rendered().splitlines() if line.startswith("| `fed")}
    told = {row.split("`")[1] for row in rows if "**rows of each class**" in row}
    assert told == {"fedpac", "fedproto"}
    counted = {m for m, names in declared().items() if any("/counts" in n for n in names)}
    assert counted == {"fedpac", "fedproto", "fd"}


TWO = np.zeros(2)


@pytest.mark.parametrize(
    ("reply", "unnamed"),
    [
        (Reply(metrics={"mean-age": 61.5}), "mean-age"),
        (Reply(metrics={"validation-mean-age": 61.5}), "mean-age"),
        (Reply({"rows": {"x": TWO, "y": TWO}}), "rows/x, rows/y"),
        (Reply({"statistics": {"counts": TWO, "ids": TWO}}), "statistics/ids"),
        (Reply({"model-1": {"x": TWO}}), "models/x"),
    ],
)
def test_a_reply_with_more_is_refused(reply: Reply, unnamed: str) -> None:
    names = may_send(FedPACClient)
    assert "statistics/counts" in names and ARRAYS in names
    with pytest.raises(RunError, match=f"^C would send {unnamed}, and does") as told:
        refuse_undeclared("C", reply, names)
    assert "\n" not in str(told.value)


def test_scores_and_models_are_named_by_what_they_are_of() -> None:
    metrics = dict.fromkeys(("trained-whole-test-loss", "global-accuracy", "loss"), 1.0)
    reply = Reply({ARRAYS: {"anything": TWO}, "model-12": {"x": TWO}}, metrics)
    names = OF_ANY_METHOD | {"models"}
    assert set(sent_names(reply, names)) == {"arrays", "models", "loss", "accuracy"}


class Leaky(FedAvgClient):
    """Adds a number of its rows, after any action."""

    ACTIONS: ClassVar[Mapping[str, str]] = {**FedAvgClient.ACTIONS, "query.rows": "on_rows"}

    def on_rows(self, request: Request) -> Reply:
        return Reply(metrics={NUM_EXAMPLES: 1, "sum": float(self.train_data.labels.sum())})


def test_no_way_out_of_a_client_passes_the_check_by() -> None:
    """Flower's legacy calls answer by the same way as messages."""
    client = Leaky(Matrix(), samples(1.0, 2), samples(1.0, 2))
    request = Request("query.rows", 0)
    with pytest.raises(RunError, match="Leaky would send sum, and does not say so"):
        client.answer(request)
    with (
        patch.object(FedAvgClient, "SENDS", frozenset({NUM_EXAMPLES})),
        pytest.raises(RunError, match="would send arrays/"),
    ):
        client.fit([np.zeros((2, 2), np.float32)], {})


ELSEWHERE = {
    "fedeba": {"loss-before"},
    "fedeba-plus": {"first-step"},
    "cfd": {"outputs/probabilities"},
    "fccl": {"pretrain-steps"},
    "fccl-plus": {"pretrain-steps"},
    "cffl": {"statistics"},
    "rank-core-fed": {"ranking/ranking"},
}
"""What a method's client sends with other keys or another network, in later rounds, or to
another method that it serves too."""


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({*METHODS.ours} - {"fedbn"}))
def test_what_is_named_is_sent(method: str) -> None:
    """The page names nothing that no reply holds. FedBN's client is FedPer's."""
    seen: set[str] = set()
    refuse = base.refuse_undeclared

    def watched(client: str, reply: Reply, names: frozenset[str]) -> None:
        seen.update(sent_names(reply, names))
        refuse(client, reply, names)

    with patch.object(base, "refuse_undeclared", watched):
        # A Hessian of more weights is refused.
        model = "linear" if method == "newton" else "mlp"
        play(method=method, model=model, num_rounds=2)
    from fedsuite.clients import load_client

    named = may_send(load_client(METHODS[method])) - OF_ANY_METHOD
    assert named - seen == ELSEWHERE.get(method, set())
