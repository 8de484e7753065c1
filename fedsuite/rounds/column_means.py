"""The one exchange of sums by which sites scale their tables' columns alike.

At the hello each site tells sums of its columns
(:mod:`fedsuite.core.column_scaling`). The server adds them up in the sites' order and tells
each site the means and deviations, in a second hello. A site that joins again gets the
same, so that a column means one thing in the whole run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedsuite.core.column_scaling import ColumnScaling, ColumnSums
from fedsuite.core.errors import DataError, RunError
from fedsuite.messages.records import ConfigValue

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
