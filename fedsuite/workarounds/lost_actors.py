"""Keeps a run of Flower's simulation going when Ray's actors die with their machine.

Flower puts an actor back into its pool although the actor is dead. The pool hands out what
came back last, and a dead actor fails at once. So one lost machine fails nearly all
messages of all later rounds, while the other machines idle.

Seen in flwr 1.41 and 1.42. To delete when Flower's pool drops dead actors and sends their
messages to others.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flwr.serverapp import Grid

from fedsuite.core.errors import RunError
from fedsuite.core.logs import write_line

TRIES = 3
"""Actors that a message may lose before it fails: it may be what kills them."""

_PAUSE_S = 0.01


@contextmanager
def lost_actors_replaced(grid: Grid) -> Iterator[None]:
    """Give the messages of dead actors to living ones inside the block.

    A repeated message gives the same reply, so nothing of a round is lost. It does nothing
    outside Flower's simulation.

    Parameters
    ----------
    grid
        Flower's own grid.
    """
    from flwr.superlink.grid import InMemoryGrid

    if not isinstance(grid, InMemoryGrid):
        yield
        return
    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool
    from ray.exceptions import RayActorError

    replaced = {
        (BasicActorPool, "submit"): submit_when_free,
        (BasicActorPool, "add_actor_back_to_pool"): add_back_unless_dead,
        (RayBackend, "process_message"): process_again,
    }
    originals = {(owner, name): getattr(owner, name) for owner, name in replaced}
    for (owner, name), function in replaced.items():
        setattr(owner, name, function(originals[owner, name], RayActorError))
    try:
        yield
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


def submit_when_free(original: Any, _died: type[Exception]) -> Any:
    """Return a ``submit`` that waits for an actor: there are fewer than Flower thinks."""

    def submit(pool: Any, actor_fn: Any, job: Any) -> Any:
        while pool.num_actors > 0:
            with suppress(IndexError):
                return original(pool, actor_fn, job)
            time.sleep(_PAUSE_S)
        raise RunError("all of Ray's actors have died")

    return submit


def add_back_unless_dead(original: Any, died: type[Exception]) -> Any:
    """Return an ``add_actor_back_to_pool`` that drops an actor whose death is at hand."""

    def add_back(pool: Any, future: Any) -> None:
        if not isinstance(sys.exc_info()[1], died):
            original(pool, future)
            return
        del pool._future_to_actor[future]
        pool.num_actors -= 1
        write_line(f"a Ray actor died, perhaps with its node: {pool.num_actors} are left")

    return add_back


def process_again(original: Any, died: type[Exception]) -> Any:
    """Return a ``process_message`` that tries again with another actor."""

    def process(backend: Any, message: Any, context: Any) -> Any:
        for _ in range(TRIES - 1):
            with suppress(died):
                return original(backend, message, context)
        return original(backend, message, context)

    return process
