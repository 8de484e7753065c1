"""The experiment that a message brings to a node, and the data of the node.

A message chooses no file, no folder, no column and no code of a node. It names what
fedsuite and the packages on the node know by name, and the node's operator chose these
packages. Where a message names a path, the node takes its own.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Value
from fedsuite.data import DataSettings
from fedsuite.data.site import Site, site_from_config
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.paths import path_keys
from fedsuite.experiment.plug_ins import (
    ALLOWED_CODE,
    ALLOWED_CODE_VARIABLE,
    check_allowed,
    fingerprint,
)
from fedsuite.rounds.round_settings import SECURE
from fedsuite.rounds.secure_rules import MASKED, masks_demanded

NodeConfig = Mapping[str, Value]

logger = logging.getLogger(__name__)


def node_experiment(run_config: Mapping[str, Value], node_config: NodeConfig) -> Experiment:
    """Return the experiment that came with a message to this node.

    Nothing that it names is imported before this check, except what packages add that the
    node's operator installed.

    Raises
    ------
    ConfigError
        If it cannot be run, or names code that the node's operator did not allow.
    """
    experiment = Experiment.from_values(run_config, own_paths=not is_simulated())
    _check_masks(experiment, node_config)
    allowed = node_config.get(ALLOWED_CODE, os.environ.get(ALLOWED_CODE_VARIABLE, ""))
    check_allowed(experiment.values, str(allowed))
    return experiment


def _check_masks(experiment: Experiment, node_config: NodeConfig) -> None:
    """Refuse a run without masks where the node's operator demands them."""
    if masks_demanded(node_config, os.environ) and experiment[SECURE] != MASKED:
        raise ConfigError(
            f"this node trains under masks alone, and the run has {SECURE} = "
            f"{experiment[SECURE]!r}: set {MASKED!r}"
        )


def warn_of_ignored_paths(run_config: Mapping[str, Value], experiment: Experiment) -> None:
    """Warn in the node's log of the paths of a message that it ignores, if any."""
    paths = {key: run_config.get(key.name, key.default) for key in path_keys()}
    keys = [key for key, value in paths.items() if value != experiment[key.name]]
    if keys:
        variables = ", ".join(key.path for key in keys if key.path)
        logger.warning(
            "passed over what a message says of %s: this node's operator chooses its "
            "folders (%s)",
            ", ".join(key.name for key in keys),
            variables or "node-config",
        )


def is_simulated() -> bool:
    """Return whether this process is an actor of Ray, as in Flower's simulation.

    Then whoever runs the server has started this process too, and its paths are theirs. A
    message cannot make an actor of a node's process.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


def plug_in_fingerprint(experiment: Experiment) -> dict[str, str]:
    """Return the fingerprint of code that is not fedsuite's, if any."""
    plug_ins = fingerprint(experiment.values)
    return {"plug-ins": plug_ins} if plug_ins else {}


def node_site(experiment: Experiment, node_config: NodeConfig) -> Site | None:
    """Return the data of this node's operator; None where clients divide a data set.

    Raises
    ------
    ConfigError
        If experiment and node do not fit: no run makes a node with data of its own open
        another folder.
    """
    data = experiment.group(DataSettings)
    if data.site_dirs:
        raise ConfigError(
            "key site-dirs rehearses in the local engine: leave it out, and name each "
            "node's data in its node-config"
        )
    if data.sites:
        return site_from_config(node_config)
    if "data" in node_config:
        raise ConfigError(
            "this node has data of its own (data in its node-config) and serves no other: "
            "name it in the key sites"
        )
    return None


@contextmanager
def data_errors_stay_here() -> Iterator[None]:
    """Keep errors about a site's data, which may quote paths and rows, out of replies."""
    try:
        yield
    except DataError as error:
        logger.error("%s", error)
        raise DataError("the site's data cannot be used: its own log says why") from None
