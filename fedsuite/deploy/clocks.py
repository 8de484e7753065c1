"""A site's clock and the server's, which Flower compares at each request of a node.

A node signs the time. The SuperLink refuses a time that is ahead of its own or long past,
and the SuperNode then ends without a word on the reason.
"""

import http.client
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fedsuite.deploy.folders import AUTHORITY, NodeFolder

AHEAD_S, BEHIND_S = 5.0, 300.0
"""Seconds ahead of the server and behind it from which Flower may refuse a node."""


def clock_trouble(folder: NodeFolder) -> str:
    """Return why the SuperLink refuses this machine's clock; empty if it does not.

    Empty, too, if the server does not answer, or tells no time.
    """
    ahead = seconds_ahead(folder)
    if ahead is None or -BEHIND_S <= ahead <= AHEAD_S:
        return ""
    where = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {where} the server's, and the "
        "SuperLink refuses the node for it: set both clocks, by NTP for example"
    )


def seconds_ahead(folder: NodeFolder) -> float | None:
    """Return by how much this clock is ahead of the server's; None if nobody tells."""
    host, _, port = folder.superlink.rpartition(":")
    try:
        trusted = ssl.create_default_context(cafile=str(folder.path / AUTHORITY))
        line = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=5.0, context=trusted
        )
    except (OSError, ValueError):
        return None
    try:
        line.request("GET", "/")
        date = line.getresponse().getheader("Date", "")
        return (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return None
    finally:
        line.close()
