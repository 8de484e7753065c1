"""The keys of a run: which method, where, how long, and what is written of it."""

from typing import Literal

from fedsuite.core.errors import Refused
from fedsuite.core.keys import AUTO, Unless
from fedsuite.core.registry import METHODS
from fedsuite.core.settings import Settings, key

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Trackers of experiments, each a module of :mod:`fedsuite.callbacks`."""


class RunSettings(Settings):
    """How an experiment is run."""

    method: str = key(default="fedavg", help="method to run", choices=METHODS)
    preset: Literal["default", "paper"] = key(
        # The values that it brings identify the experiment.
        local=True,
        default="default",
        help="values of the method's keys that are not named: the ones that we found best, "
        "or its paper's",
    )
    num_rounds: int = key(
        local=True, default=10, help="rounds of the federation", minimum=1
    )
    initial_model: str = key(
        default="",
        path="",
        help="folder of a run, or file of safetensors, whose model this run starts from; "
        "empty draws the parameters",
    )
    round_timeout: float = key(
        local=True,
        default=3600.0,
        help="seconds to wait for the replies of a round",
        above=0.0,
    )
    client_settings: str = key(
        default="",
        help="values that single clients have in place of all clients' own, such as '3: "
        "drop-out=0.5; hospital-b: learning-rate=0.01, local-epochs=2'; empty is none",
    )
    threads: int = key(
        default=1,
        help="torch threads of each process; may change the last bits",
        minimum=1,
        maximum=256,
    )
    device: str = key(
        default="auto", help="where clients train", choices=("auto", "cpu", "cuda")
    )
    engine: Literal["auto", "local", "ray", "deployment"] = key(
        local=True, default="auto", help="what runs it under `fedsuite run`: auto is local"
    )
    workers: int = key(
        local=True,
        default=1,
        help="processes that clients of the local engine train in, the run's own among "
        "them, to the same bits; 0 is one per core",
        minimum=0,
        maximum=1024,
    )
    resume: bool = key(
        local=True, default=False, help="go on from the last checkpoint in the run's folder"
    )
    output_dir: str = key(
        local=True,
        default=AUTO,
        path="FEDSUITE_RUNS",
        help="folder that run folders go into",
    )
    run_name: str = key(local=True, default=AUTO, help="name of the run's folder")
    state_dir: str = key(
        local=True,
        default=AUTO,
        path="FEDSUITE_STATE",
        help="folder for what clients keep between rounds",
    )
    client_memory: int = key(
        local=True,
        default=2048,
        help="MiB of what clients keep that stays in memory (local engine); the rest in "
        "files",
        minimum=1,
    )
    checkpoint_every: int = key(
        local=True, default=10, help="rounds between checkpoints; 0 writes none", minimum=0
    )
    report: bool = key(
        local=True,
        default=True,
        help="write report.html into the run's folder at the end of `fedsuite run`, of a "
        "sweep one page of all its runs",
    )
    trackers: str = key(
        local=True,
        default="",
        help=f"trackers that follow the run, comma-separated: {', '.join(TRACKERS)}; empty "
        "is none",
    )
    metrics_port: int = key(
        local=True,
        default=0,
        help="port of the server's Prometheus text, /metrics, while rounds go on; 0 is "
        "none",
        minimum=0,
        maximum=65535,
    )
    metrics_host: str = key(
        local=True,
        default="127.0.0.1",
        help="address that metrics-port is opened on",
        needs=(Unless("metrics-port", 0),),
    )
    early_stop_metric: str = key(
        default="",
        help="metric of rounds.jsonl that ends the run when it stops improving; auto is "
        "the mean of the main score, on clients' validation rows where there are some; "
        "empty: never",
    )
    early_stop_patience: int = key(
        default=20,
        help="evaluations without improvement to wait",
        minimum=1,
        needs=(Unless("early-stop-metric", ""),),
    )
    best_model_metric: str = key(
        default="",
        help="metric of rounds.jsonl whose best model is kept too; auto as of "
        "early-stop-metric; empty keeps none",
    )

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The trackers, each once.

        Raises
        ------
        ConfigError
            If there is no tracker of a name.
        """
        names = tuple(name.strip() for name in self.trackers.split(",") if name.strip())
        for name in names:
            if name not in TRACKERS:
                raise Refused(
                    {"trackers": self.trackers},
                    f"it names {name!r}: expected some of {', '.join(TRACKERS)}",
                )
        return tuple(dict.fromkeys(names))
