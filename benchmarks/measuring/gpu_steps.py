"""The steps of ``gpu.py``: what each runs, in its whole or its reduced form."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from measuring.arms import BENCHMARKS, EXPERIMENTS

PAPERS = BENCHMARKS.parent / "simulations"
SETS = {"f3": "cifar10", "f4": "fashion_mnist"}
METHODS = {
    "FedEBA+": ("fedeba/cifar10/fedeba-plus.toml",),
    "FedAvg, filters decomposed": (
        "decomposition/cifar10_100x5_fedavg.toml",
        "decomposition=true",
    ),
    "FedAKD": ("fedakd/cifar10_ics5.toml",),
}
"""The papers' experiments on CIFAR-10, and settings."""

TABLES = {
    "f3": ("F3, local engine", ("clients per round",)),
    "f4": ("F4, local engine", ("clients per round",)),
    "ray": ("F3 under Ray", ("--client-gpus",)),
    "cifar10": ("CIFAR-10 as in the papers", ("method",)),
}
"""Titles of the tables, and what their first cells say."""

COMMON = ("report=false", "checkpoint-every=0")


@dataclass(frozen=True)
class Form:
    """Sizes of the steps.

    Parameters
    ----------
    device
        Value of the key ``device``.
    rounds
        Rounds of F3 and F4 by clients per round.
    medium
        Clients per round under Ray.
    shares
        Parts of a GPU that a client gets under Ray.
    cases, papers
        Settings of F3 and F4, and of the papers' experiments.
    few
        Beginning of the names of generated rows.
    environment
        What Ray and the tests are told besides.
    """

    device: str
    rounds: Mapping[int, int]
    medium: int
    shares: tuple[float, ...]
    cases: tuple[str, ...]
    papers: tuple[str, ...] = ()
    few: str = ""
    environment: tuple[tuple[str, str], ...] = ()


WHOLE = Form(
    device="cuda",
    rounds={10: 40, 100: 12, 1000: 5},
    medium=100,
    shares=(1.0, 0.25, 0.1),
    cases=("num-clients=1000",),
)

_FOUR_ROUNDS = ("num-rounds=4", "evaluate-every=2")
REDUCED = Form(
    device="cpu",
    rounds={2: 4, 5: 4, 10: 4},
    medium=5,
    shares=(1.0, 0.5),
    cases=("num-clients=10", "local-epochs=0", "local-steps=2"),
    papers=(
        "num-clients=10",
        "clients-per-round=2",
        "local-epochs=0",
        "local-steps=1",
        *_FOUR_ROUNDS,
    ),
    few="few_",
    environment=(("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}'), ("FEDSUITE_TEST_GPU", "cpu")),
)
"""On the processor: Ray is told of a GPU, and the tests take the processor for it."""


@dataclass(frozen=True)
class Step:
    """One run, in a process of its own.

    Parameters
    ----------
    table
        The table that it is a row of; ``tests`` for the GPU tests.
    about
        First cells of the row; no two rows of a table have the same.
    options
        Experiment file and options of ``fedsuite run``.
    base
        Name of the step whose speed it is compared to.
    weight
        Its part of the time, over that of others.
    """

    table: str
    about: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    base: str = ""
    weight: int = 1

    @property
    def name(self) -> str:
        """Name in the results."""
        return " ".join([self.table, *self.about])


def steps(form: Form, data: Path | None) -> list[Step]:
    """Return all steps in their order, on the sets in a folder or on generated rows."""

    def settings(folder: str, *chosen: str) -> tuple[str, ...]:
        rows = f"data-dir={data}" if data else f"dataset=peers.generated:{form.few}{folder}"
        every = (f"device={form.device}", rows, *COMMON, *chosen)
        return tuple(word for setting in every for word in ("--set", setting))

    def case(name: str, clients: int) -> tuple[str, ...]:
        rounds = form.rounds[clients]
        size = (f"clients-per-round={clients}", f"num-rounds={rounds}")
        chosen = (*form.cases, *size, f"evaluate-every={rounds}")
        return (f"{EXPERIMENTS / name}.toml", *settings(SETS[name], *chosen))

    all_steps = [Step("tests", weight=3)]
    for clients in form.rounds:
        for name in SETS:
            all_steps.append(Step(name, (f"{clients}",), case(name, clients)))
    for share in form.shares:
        options = ("--engine", "ray", "--client-gpus", f"{share}")
        of_f3 = (*case("f3", form.medium), *options)
        all_steps.append(Step("ray", (f"{share:g}",), of_f3, f"ray {form.shares[0]:g}", 3))
    for method, (file, *own) in METHODS.items():
        of_paper = (f"{PAPERS / file}", *settings("cifar10", *own, *form.papers))
        all_steps.append(Step("cifar10", (method,), of_paper, weight=2))
    return all_steps
