"""Pages of the reference: lists of public names, from which autosummary makes the pages."""

from collections.abc import Iterable
from pathlib import Path

from fedsuite import data
from fedsuite.core.registry import exported_classes

MODULES: dict[str, tuple[str, Iterable[str]]] = {
    "fedsuite": ("Runs an experiment, and resumes it.", ("run", "resume")),
    "fedsuite.strategies": (
        "The server's side of each method, for any Flower app.",
        exported_classes("strategies"),
    ),
    "fedsuite.clients": (
        "The client's side of each method, for any Flower app.",
        exported_classes("clients"),
    ),
    "fedsuite.data": ("Data sets, and how clients share them.", data.__all__),
    "fedsuite.data.site": ("Data that a site brings.", ("Site", "SiteData")),
    "fedsuite.models": (
        "Networks, and their factored form.",
        ("ModelSpec", "decompose", "recompose", "parameter_groups"),
    ),
    "fedsuite.training.base": ("What a client is made of.", ("FederatedClient",)),
    "fedsuite.training.app": ("A ClientApp of such clients.", ("make_client_app",)),
    "fedsuite.training.loop": ("The keys of local training.", ("TrainingOptions",)),
    "fedsuite.rounds.strategy": ("What a strategy is made of.", ("FederatedStrategy",)),
    "fedsuite.rounds.exchange": ("An exchange inside a round.", ("Exchange",)),
    "fedsuite.rounds.validation": (
        "What must come back, and what came.",
        ("Expected", "ClientReply"),
    ),
    "fedsuite.core.metrics": (
        "Fairness over clients.",
        ("FairnessReport", "fairness_report", "collaborative_fairness"),
    ),
    "fedsuite.core.settings": ("Declaring keys.", ("key", "given", "part", "state")),
    "fedsuite.results.reader": ("A run, read from its folder.", ("Run", "load_run")),
    "fedsuite.callbacks": (
        "Work around the rounds.",
        ("Callback", "RoundReport", "RunState"),
    ),
    "fedsuite.core.errors": (
        "Errors for people: one line that says what, where, and what to do.",
        ("FedsuiteError", "ConfigError", "DataError", "RunError", "Stopped"),
    ),
}
"""Module to one sentence and its public names."""


def write_reference(folder: Path) -> None:
    """Write one page per module into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for module, (what, names) in MODULES.items():
        listed = "\n".join(f"   {name}" for name in sorted(names, key=str.lower))
        (folder / f"{module}.md").write_text(
            f"# {module}\n\n{what}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n"
            f".. autosummary::\n   :toctree: api\n\n{listed}\n```\n"
        )
