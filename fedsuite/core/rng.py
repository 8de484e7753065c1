"""Random streams keyed by (seed, purpose, round, client).

No part of fedsuite draws from global random state. Each draw comes from a stream named by
its purpose. So an experiment gives the same numbers whatever the engine, the order of
clients, or the process.
"""

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, purpose: str, server_round: int = 0, client_id: int = 0) -> int:
    """Return the 63-bit seed of one stream, the same on every platform.

    Parameters
    ----------
    seed
        The experiment's seed.
    purpose
        Purpose of the draws, such as ``"sampling"`` or ``"batches"``.
    server_round, client_id
        Round and client of the stream; 0 for none.
    """
    name = f"{seed}/{purpose}/{server_round}/{client_id}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little") >> 1


def numpy_stream(
    seed: int, purpose: str, server_round: int = 0, client_id: int = 0
) -> np.random.Generator:
    """Return a fresh NumPy generator at the start of the stream."""
    return np.random.default_rng(stream_seed(seed, purpose, server_round, client_id))


def torch_stream(
    seed: int, purpose: str, server_round: int = 0, client_id: int = 0
) -> "torch.Generator":
    """Return a fresh torch CPU generator at the start of the stream."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(stream_seed(seed, purpose, server_round, client_id))
    return generator


@contextmanager
def seeded(seed: int, gpus: Sequence[int] = ()) -> Iterator[None]:
    """Seed the global generators inside the block, for code that is not fedsuite's.

    The generators of torch, NumPy and Python are then as before. No other thread may draw
    from them meanwhile.

    Parameters
    ----------
    seed
        The seed.
    gpus
        GPUs whose generators are seeded too, and whose convolutions repeat their sums.
    """
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    cudnn = torch.backends.cudnn
    of_cudnn = cudnn.deterministic, cudnn.benchmark
    if gpus:
        cudnn.deterministic, cudnn.benchmark = True, False
    with torch.random.fork_rng(devices=gpus):
        # torch.manual_seed would reseed all GPUs for good.
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        np.random.seed(seed % (1 << 32))
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
            cudnn.deterministic, cudnn.benchmark = of_cudnn


class States(NamedTuple):
    """States of a process's global generators; torch's is None where it is not used."""

    python: Any
    numpy: Any
    torch: Any


class OwnStreams:
    """Global generators of code that shares the process with other code, as a block.

    Inside the block the generators of Python, NumPy and torch go on from where the last
    such block left them. Behind it they are as before. Those of GPUs are left alone.

    Parameters
    ----------
    before
        The states before the code was imported. A generator that the import seeded, or
        drew from, goes on from there. Another one begins as in a new process: Python's and
        NumPy's from the system's entropy.
    """

    def __init__(self, before: States) -> None:
        now = global_states()
        python = random.Random().getstate() if now.python == before.python else now.python
        same = (
            np.array_equal(now.numpy[1], before.numpy[1])
            and now.numpy[2] == before.numpy[2]
        )
        numpy = np.random.RandomState().get_state() if same else now.numpy
        self._own = States(python, numpy, now.torch)

    def __enter__(self) -> None:
        self._others = global_states()
        _set_states(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = global_states()
        _set_states(self._others)


def global_states() -> States:
    """Return the states of the global generators."""
    # Whoever has not imported torch draws nothing from it.
    torch = sys.modules.get("torch")
    of_torch = torch and torch.default_generator.get_state()
    return States(random.getstate(), np.random.get_state(), of_torch)


def _set_states(states: States) -> None:
    random.setstate(states.python)
    np.random.set_state(states.numpy)
    if states.torch is not None:
        sys.modules["torch"].default_generator.set_state(states.torch)


def all_gpus() -> Sequence[int]:
    """Return the GPUs that torch sees, made ready to be seeded."""
    import torch

    if not torch.cuda.is_available():
        return ()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count())
