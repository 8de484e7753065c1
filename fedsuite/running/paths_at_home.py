"""Paths of a node stay at the node: no reply's error names one.

This is the one place that all error replies of a real node pass. The node's own log has the
whole text. Where server and clients are processes of one person, nothing is replaced.
"""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Error, Message

from fedsuite.core.keys import Value
from fedsuite.messages.records import records_of

PLACE = "(a path of this node)"
"""Stands in a reply where the node's log has a path."""

_REASON = "reason"

# What begins like an absolute path, of any system: in quotes up to the closing one, and
# elsewhere up to a space or a sign that ends it. None begins inside a word or an address.
_QUOTED = re.compile(r"""(['"])(?:~?/|~?[A-Za-z]:[\\/]|\\\\).*?\1""")
_BARE = re.compile(r"""(?<![\w:/.~\\])(?:~[\w-]*/|/|[A-Za-z]:[\\/]|\\\\)[^\s:,;()'"]+""")
_REST = r"""[^:,;()'"\n]*"""

logger = logging.getLogger(__name__)


def own_folders(node_config: Mapping[str, Value]) -> list[str]:
    """Return the folders of this process, as texts that errors begin a path with."""
    named = [value for key, value in os.environ.items() if key.startswith("FEDSUITE_")]
    named += [str(node_config.get("data", "")), tempfile.gettempdir(), sys.prefix]
    named += [str(Path.home()), os.getcwd()]
    folders = {name.rstrip("/\\") for name in named}
    # A folder's own name first, then those that it lies in.
    return sorted(folders - {""}, key=len, reverse=True)


def without_paths(text: str, folders: Iterable[str] = ()) -> str:
    """Return an error's text without the paths in it.

    Parameters
    ----------
    text
        What an error says.
    folders
        Folders in which names may have spaces, and which may be relative: what begins with
        one is replaced up to the next colon, comma, quote or bracket.
    """
    text = _QUOTED.sub(PLACE, text)
    for folder in folders:
        # A word alone, such as "data", is a folder only where something in it follows.
        times = "?" if {"/", "\\"} & set(folder) else "{1}"
        inside = rf"(?:[/\\]{_REST}){times}"
        text = re.sub(rf"(?<![\w/\\]){re.escape(folder)}{inside}(?!\w)", PLACE, text)
    return _BARE.sub(PLACE, text)


def paths_at_home(reply: Message, node_config: Mapping[str, Value]) -> Message:
    """Return a reply whose errors name no path; log entries of clients that did."""
    folders = own_folders(node_config)
    if reply.has_error():
        error = reply.error
        reply.error = Error(error.code, without_paths(str(error.reason), folders))
        return reply
    for record in records_of(reply.content, ConfigRecord).values():
        reason = record.get(_REASON)
        if not isinstance(reason, str):
            continue
        told = without_paths(reason, folders)
        if told != reason:
            record[_REASON] = told
            logger.error("%s", reason)
    return reply
