"""What a client keeps between rounds: immutable, numbered versions of its state.

A version is named after the message that made it (:mod:`fedsuite.messages.versions`). The
server names the version to start from. So a repeated message gives the same reply, and a
resumed run starts from the versions of its checkpoint, whatever came later.

Messages may be worked on late: repeated ones, or those of a server that died, beside the
run that goes on in its place. So a message drops older versions alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.files import (
    atomic_write,
    make_folder,
    remove_file,
    safetensors_bytes,
)
from fedsuite.core.reading import read_arrays
from fedsuite.messages.records import Arrays
from fedsuite.messages.versions import is_older, is_version
from fedsuite.training.spill import SpillingMemory


class ClientStore(Protocol):
    """Store of versions of clients' state."""

    def load(self, client_id: int, version: str) -> Arrays:
        """Return a version; :class:`RunError` if it is not there or unreadable."""

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Store a version, and drop older ones that are not needed."""


class FileStore:
    """Versions as files ``FOLDER/CLIENT/VERSION.safetensors``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, client_id: int, version: str) -> Path:
        """Return where a version lies; RunError for a name that is no version's."""
        if not is_version(version):
            raise RunError(
                f"client {client_id}: {version!r:.40} is no version of its state"
            )
        return self._folder / str(int(client_id)) / f"{version}.safetensors"

    def load(self, client_id: int, version: str) -> Arrays:
        """Return a version."""
        path = self.path(client_id, version)
        try:
            arrays, _ = read_arrays(path)
        except (OSError, ValueError) as error:
            raise RunError(
                f"client {client_id}: state {version} cannot be read from {path} "
                f"({error}): keep state-dir between rounds, go back by `fedsuite resume "
                "RUN --from-round N`, or start a new run"
            ) from error
        return arrays

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Store a version, and drop older ones that are not needed."""
        self.write(client_id, version, arrays)
        for path in self._files_of(client_id):
            if path.stem not in needed and is_older(path.stem, version):
                remove_file(path)

    def write(self, client_id: int, version: str, arrays: Arrays) -> None:
        """Store a version and leave the others alone."""
        path = self.path(client_id, version)
        make_folder(path.parent)
        atomic_write(path, safetensors_bytes(arrays))

    def prune(self, client_id: int, needed: set[str]) -> None:
        """Delete all versions that are not needed, newer ones too.

        For the one server that owns the folder, which knows what is of a lost timeline.
        """
        for path in self._files_of(client_id):
            if path.stem not in needed:
                remove_file(path)

    def _files_of(self, client_id: int) -> list[Path]:
        return list((self._folder / str(int(client_id))).glob("*.safetensors"))


class MemoryStore:
    """Versions in memory, written to files only where a checkpoint needs them.

    :meth:`persist` writes to ``files``, and a resumed run finds older versions there; None
    is nowhere. ``memory`` holds the versions; None has no limit.
    """

    def __init__(
        self, files: FileStore | None = None, memory: SpillingMemory | None = None
    ) -> None:
        self._files = files
        self._memory = memory if memory is not None else SpillingMemory()
        self._versions: dict[int, set[str]] = {}
        self._written: dict[int, str] = {}
        self._pruned: dict[int, str] = {}

    def load(self, client_id: int, version: str) -> Arrays:
        """Return a version."""
        arrays = self._memory.get((client_id, version))
        if arrays is not None:
            return arrays
        if self._files is None:
            raise RunError(f"client {client_id}: there is no state {version}")
        return self._files.load(client_id, version)

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Store a version, and drop older ones that are not needed."""
        known = self._versions.setdefault(client_id, set())
        dropped = {other for other in known - needed if is_older(other, version)}
        for other in dropped:
            self._memory.drop((client_id, other))
        known -= dropped
        known.add(version)
        frozen = {name: _frozen(array) for name, array in arrays.items()}
        self._memory.put((client_id, version), frozen)

    def persist(self, versions: Mapping[int, str]) -> None:
        """Write these versions to files; those of the last checkpoint stay."""
        if self._files is None:
            return
        for client_id, version in versions.items():
            # A file of that name that is not ours is left of another run: replace it.
            if self._written.get(client_id) == version:
                continue
            arrays = self._memory.get((client_id, version))
            if arrays is not None:
                self._files.write(client_id, version, arrays)
                self._written[client_id] = version
                self._pruned.pop(client_id, None)

    def prune(self, versions: Mapping[int, str]) -> None:
        """Delete the files of all other versions, which no checkpoint needs any more.

        ``versions`` has a client's versions, comma-separated, the last checkpoint's last.
        Those of earlier checkpoints stay in files alone.
        """
        if self._files is None:
            return
        for client_id, kept in versions.items():
            # Very many clients have folders that it takes long to look into.
            if self._pruned.get(client_id) != kept:
                *earlier, _ = kept.split(",")
                self._files.prune(client_id, set(kept.split(",")))
                for version in earlier:
                    self._memory.drop((client_id, version))
                self._pruned[client_id] = kept


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only array; many clients may keep one received array."""
    if not array.flags.writeable:
        return array
    copy = array.copy()
    copy.flags.writeable = False
    return copy
