"""What nodes tell of themselves at the hello, and what the server makes of it.

It compares code and data with its own, and the columns of sites with each other. Where a
run scales columns by means over all sites, each site tells its sums; the server adds them
up in the sites' order and tells each site the means and deviations, in a second hello. A
site that joins again gets the same, so that a column means one thing in the whole run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsuite.core.column_scaling import ColumnScaling, ColumnSums
from fedsuite.core.errors import DataError, RunError, one_line
from fedsuite.messages.records import ConfigValue, records_of


@dataclass(frozen=True)
class OwnSide:
    """What this side runs and has; None is compared with nothing.

    Parameters
    ----------
    source
        Hash of fedsuite's code.
    plug_ins
        Fingerprint of code that is not fedsuite's.
    public
        Fingerprint of the public data.
    """

    source: str | None
    plug_ins: str | None
    public: str | None

    def refusal(self, facts: Mapping[str, ConfigValue]) -> str:
        """Return what is wrong with a node of other code or other data; empty of none."""
        source, plug_ins, public = (
            one_line(str(facts.get(name, ""))) for name in ("source", "plug-ins", "public")
        )
        if self.source is not None and source != self.source:
            return (
                f"runs other fedsuite code than the ServerApp ({source[:12]} and "
                f"{self.source[:12]}): install the same version on both and start "
                "SuperLink and SuperNodes from an empty folder"
            )
        if self.plug_ins is not None and plug_ins != self.plug_ins:
            return (
                f"runs other code of plug-ins than the ServerApp ({plug_ins or 'none'} and "
                f"{self.plug_ins or 'none'}): install the same version on both"
            )
        if self.public is not None and public != self.public:
            return (
                f"has other public data than the ServerApp ({public[:12] or 'none'} and "
                f"{self.public[:12]}): give both the same data set, or the same files in "
                "public-dir"
            )
        return ""


class SiteColumns:
    """Compares the columns of sites, of which each says a hash and none the names."""

    def __init__(self) -> None:
        self._first: tuple[str, str] | None = None

    @property
    def told(self) -> str:
        """Hash that all sites told; empty where none has yet."""
        return self._first[1] if self._first else ""

    def refusal(self, site: str, facts: Mapping[str, ConfigValue]) -> str:
        """Return what is wrong with a site of other columns than the first; else empty."""
        told = one_line(str(facts.get("columns", "")))
        if not told:
            return ""
        if self._first is None:
            self._first = site, told
        first, known = self._first
        if told == known:
            return ""
        return (
            f"has other columns than site {first} ({told[:12]} and {known[:12]}): compare "
            "the names, which stand beside these numbers in each site's own log, and give "
            "both the same in the same order"
        )


def names_of(grid: Grid) -> Callable[[int], str]:
    """Return what calls a node by the name that the SuperLink knows, or by its number."""

    @cache
    def known() -> Mapping[int, str]:
        return {info.node_id: info.name for info in grid.get_nodes()}

    return lambda node_id: f"node {known().get(node_id) or node_id}"


def facts_of(reply: Message) -> Mapping[str, ConfigValue]:
    """Return what a node tells of itself."""
    return records_of(reply.content, ConfigRecord).get("hello", {})


SUMS = "column-sums-"
"""Beginning of the entries of a hello that tell a site's sums."""

SCALING = "column-scaling"
"""Record of the second hello."""


def told_sums(sums: ColumnSums) -> dict[str, list[float]]:
    """Return the entries of a hello that tell a site's sums."""
    return {f"{SUMS}{name}": values for name, values in sums.to_dict().items()}


def told_scaling(content: RecordDict) -> ColumnScaling | None:
    """Return the scaling that a hello tells; None of another hello.

    Raises
    ------
    DataError
        If it is none.
    """
    record = content.config_records.get(SCALING)
    return None if record is None else ColumnScaling.from_dict(dict(record))


class ColumnMeans:
    """Adds up what sites tell of their columns, and says what comes of it."""

    def __init__(self) -> None:
        self._sums: dict[int, ColumnSums] = {}
        self.scaling: ColumnScaling | None = None

    def take(
        self, client_id: int, site: str, facts: Mapping[str, ConfigValue], rows: object
    ) -> None:
        """Take a site's sums, if it tells any and the run has no means yet.

        Parameters
        ----------
        client_id, site
            The site's client and name.
        facts
            What it tells at the hello.
        rows
            Training rows that it says it has, which no column can exceed.

        Raises
        ------
        RunError
            If they are no sums of so many rows.
        """
        told: dict[str, Any] = {
            name.removeprefix(SUMS): value
            for name, value in facts.items()
            if name.startswith(SUMS)
        }
        if not told or self.scaling is not None:
            return
        try:
            sums = ColumnSums.from_dict(told)
        except DataError as error:
            raise RunError(f"site {site}: {error}: mend the site's programs") from None
        if not isinstance(rows, int) or max(sums.counts, default=0) > rows:
            raise RunError(
                f"site {site} tells sums over more values than it has rows: mend the "
                "site's programs"
            )
        self._sums[client_id] = sums

    def settle(self, client_ids: Sequence[int]) -> None:
        """Make means of the sums of all sites, in their order; of none where none told any.

        Raises
        ------
        RunError
            If some told sums and others none, or they do not fit together.
        """
        if self.scaling is not None or not self._sums:
            return
        if set(client_ids) - set(self._sums):
            raise RunError(
                "some sites told sums of their columns and others none: run the same "
                "version on all"
            )
        try:
            every = [self._sums[client_id] for client_id in sorted(self._sums)]
            self.scaling = ColumnScaling.from_sums("federated", every)
        except DataError as error:
            raise RunError(str(error)) from None

    def content(self) -> RecordDict:
        """Return what tells a site the means."""
        assert self.scaling is not None
        return RecordDict({SCALING: ConfigRecord(self.scaling.to_dict())})
