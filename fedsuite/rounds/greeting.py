"""What nodes tell of themselves at the hello, and what the server compares it with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedsuite.core.errors import one_line
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
