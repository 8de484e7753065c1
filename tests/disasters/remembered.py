"""What is the same in world after world is worked out once.

Clients' answers depend on the message and on the states that they load; settings on their
values; versions of packages on nothing. So all of them are kept, and each world still plays
every message, file operation and line of the server itself.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context
from numpy.typing import NDArray

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.settings import Declared, Settings
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages import secrets_shared as secrets
from fedsuite.messages.records import TRAIN, Reply, Request
from fedsuite.messages.versions import exchange_of
from fedsuite.results import writer
from fedsuite.running import server
from fedsuite.running.worker import Worker
from fedsuite.training import secure_client
from fedsuite.training.app import Answering
from fedsuite.training.store import ClientStore

_MOST_ANSWERS = 20_000
_MOST_EXPERIMENTS = 5_000

Arrays = Mapping[str, NDArray[Any]]


class Memory(OrderedDict[Any, Any]):
    """The last values that were asked for, by what they follow from."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: Any, value: Any) -> Any:
        """Keep a value, in place of the oldest one."""
        self[key] = value
        if len(self) > self._most:
            self.popitem(last=False)
        return value


_ANSWERS = Memory(_MOST_ANSWERS)
_EXPERIMENTS = Memory(_MOST_EXPERIMENTS)
_SETTINGS: dict[Any, Any] = {}
CALM = Memory(500)
"""What worlds without deaths left, by their plans."""


def forget() -> None:
    """Forget all, where the code that made it has changed."""
    _ANSWERS.clear()
    _EXPERIMENTS.clear()
    _SETTINGS.clear()
    CALM.clear()
    _SECRETS.cache_clear()


# ---------------------------------------------------------------------------------- answers


class Store:
    """A store that stands for this world's, and notes what a client keeps.

    A worker outlives worlds, and is dear.
    """

    target: ClientStore

    def __init__(self) -> None:
        self.kept: dict[str, NDArray[Any]] | None = None
        self.trained: dict[tuple[str, int], Reply] = {}
        """Group and client to what was trained, before it goes under masks."""

    def load(self, client_id: int, version: str) -> dict[str, NDArray[Any]]:
        return self.target.load(client_id, version)

    def save(
        self,
        client_id: int,
        version: str,
        arrays: dict[str, NDArray[Any]],
        needed: set[str],
    ) -> None:
        self.kept = {name: array.copy() for name, array in arrays.items()}
        self.target.save(client_id, version, arrays, needed)


class _Remembering:
    """A client that works only where it has not had such a request and such a state.

    A request names attempts only in versions of states. So the state itself is in the key.
    """

    def __init__(
        self, make: Callable[[], Answering], name: str, store: Store, client_id: int
    ) -> None:
        self._make = make
        self._name = name
        self._store = store
        self._client_id = client_id

    def answer(self, request: Request) -> Reply:
        """Answer a request, as the client does or has done."""
        reply = self._answer(request)
        if request.message_type == TRAIN:
            self._store.trained[request.new_version, self._client_id] = reply
        return reply

    def _answer(self, request: Request) -> Reply:
        try:
            state = _state_of(self._store, request)
        except FedsuiteError:
            return self._make().answer(request)
        # A sum's own numbers are another's in each world, and no client's work.
        config = {k: v for k, v in request.config.items() if not k.startswith("secure-")}
        key = (
            *(self._name, self._client_id, request.message_type),
            *(exchange_of(request.new_version), state, repr(config)),
            *((name, _digest_of(arrays)) for name, arrays in request.arrays.items()),
        )
        if key not in _ANSWERS:
            self._store.kept = None
            answered = self._make().answer(request)
            _ANSWERS.keep(key, (answered, self._store.kept))
            return answered
        reply: Reply
        reply, kept = _ANSWERS[key]
        if kept is not None:
            version, needed = request.new_version, request.needed_versions
            self._store.target.save(self._client_id, version, kept, needed)
        return reply


class RememberingWorker(Worker):
    """A worker whose clients, below their masks, work out nothing twice.

    Parameters
    ----------
    experiment, store
        As for :class:`Worker`.
    name
        Of what the clients' answers follow from, beside their requests and states.
    """

    def __init__(self, experiment: Experiment, store: Store, name: str) -> None:
        super().__init__(experiment, store)
        self._name, self._noted = name, store

    def client(self, context: Context, client_id: int) -> Answering:
        make = partial(super().client, context, client_id)
        return _Remembering(make, self._name, self._noted, client_id)


def _state_of(store: Store, request: Request) -> bytes:
    if not request.start_version:
        return b""
    return _digest_of(store.target.load(request.client_id, request.start_version))


def _digest_of(arrays: Arrays) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()


# --------------------------------------------------------------------------------- settings


def _settings_of(make: Callable[..., Any], cls: type[Declared], values: Any) -> Any:
    if not issubclass(cls, Settings):
        return make()
    given = (values.get(k.name, k.default) for k in cls.KEYS)
    key = cls, tuple(given)
    if key not in _SETTINGS:
        _SETTINGS[key] = make()
    return _SETTINGS[key]


@contextmanager
def remembering() -> Iterator[None]:
    """Work out once what an experiment's values are, and what packages there are.

    A run's last lines on the screen are left out: they read the folder, and change nothing.
    """
    from_values, group = vars(Experiment)["from_values"], Experiment.group
    of, version = vars(Declared)["of"], writer._version
    tell = vars(server)["tell_summary"]

    def experiment(
        cls: Any, given: Mapping[str, Any], /, *rest: Any, **options: Any
    ) -> Any:
        values = {name: value for name, value in given.items() if name != OUTPUT}
        key = (tuple(sorted(values.items())), rest, tuple(options.items()))
        if key not in _EXPERIMENTS:
            _EXPERIMENTS.keep(key, from_values.__func__(cls, given, *rest, **options))
        known = _EXPERIMENTS[key]
        if OUTPUT not in given or known[OUTPUT] == given[OUTPUT]:
            return known
        return cls({**known.values, OUTPUT: given[OUTPUT]}, known.note, known.left_out)

    def settings(self: Experiment, cls: Any, **parts: Any) -> Any:
        def make() -> Any:
            return group(self, cls, **parts)

        return make() if parts else _settings_of(make, cls, self.values)

    def declared(cls: Any, values: Mapping[str, Any], /, **parts: Any) -> Any:
        def make() -> Any:
            return of.__func__(cls, values, **parts)

        return make() if parts else _settings_of(make, cls, values)

    stand_ins: list[tuple[Any, str, Any, Any]] = [
        (Experiment, "from_values", classmethod(experiment), from_values),
        (Experiment, "group", settings, group),
        (Declared, "of", classmethod(declared), of),
        (writer, "_version", _VERSION, version),
        (server, "tell_summary", _tell_nothing, tell),
        *((owner, name, other, getattr(owner, name)) for owner, name, other in _SECRETS()),
    ]
    try:
        for owner, name, stand_in, _ in stand_ins:
            setattr(owner, name, stand_in)
        yield
    finally:
        for owner, name, _, real in stand_ins:
            setattr(owner, name, real)


# ---------------------------------------------------------------------------------- secrets

_MOST_SECRETS = 32
"""Key pairs, and seeds, that are drawn; a sum of four clients takes eight and four."""


def _secrets() -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for the dear half of the arithmetic of secure sums.

    Keys come again in later sums, whose numbers follow from none of them.
    """
    pairs = cycle([secrets.new_key_pair() for _ in range(_MOST_SECRETS)])
    seeds = cycle([os.urandom(32) for _ in range(_MOST_SECRETS)])
    yield secrets, "new_key_pair", lambda: next(pairs)
    for name in ("agreed_key", "public_of", "is_public_key"):
        yield secrets, name, cache(getattr(secrets, name))
    shared = cache(secrets.create_shares)
    yield secrets, "create_shares", lambda *given: list(shared(*given))
    combined = cache(lambda *shares: secrets_combined(list(shares)))
    secrets_combined = secrets.combine_shares
    yield secrets, "combine_shares", lambda shares: combined(*shares)
    drawing = SimpleNamespace(urandom=lambda _: next(seeds), environ=os.environ)
    yield secure_client, "os", drawing


_SECRETS = cache(lambda: list(_secrets()))

OUTPUT = "output-dir"
_VERSION = cache(writer._version)


def _tell_nothing(folder: Path, write: Callable[[str], None]) -> None:
    """Stand in for the tables on the screen."""
