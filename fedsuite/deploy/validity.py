"""Validity of certificates, and renewal of the server's certificate."""

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from fedsuite.core.errors import ConfigError, one_line
from fedsuite.core.files import atomic_write
from fedsuite.core.reading import read_named
from fedsuite.deploy.certificates import Certified, make_server_certificate
from fedsuite.deploy.folders import (
    AUTHORITY,
    AUTHORITY_KEY,
    KEEPER,
    SERVER,
    SERVER_KEY,
    NodeFolder,
    SuperLinkFolder,
)

WARN_DAYS = 30
"""Days before the end at which warnings start."""


def valid_until(path: Path) -> datetime:
    """Return the end of the certificate in a file, or raise :class:`ConfigError`."""
    try:
        return x509.load_pem_x509_certificate(read_named(path)).not_valid_after_utc
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise ConfigError(
            f"{path} holds no certificate: copy the folder of `fedsuite deploy init` again"
        ) from None


def check_superlink(folder: SuperLinkFolder, now: datetime | None = None) -> str:
    """Refuse certificates that have ended; return a warning of a near end, or nothing.

    ``now`` None is the present.
    """
    renew = f"`fedsuite deploy renew {folder.path}` makes a new one"
    warning = _check(folder.path / SERVER, now, renew)
    return warning or _check(folder.path / AUTHORITY, now, _NEW_FEDERATION)


def check_node(folder: NodeFolder, now: datetime | None = None) -> str:
    """Check a node's only certificate, the authority's; see :func:`check_superlink`."""
    return _check(folder.path / AUTHORITY, now, _NEW_FEDERATION)


def server_trouble(folder: NodeFolder) -> str:
    """Return why this node does not trust what answers as its server, and who mends it.

    Empty, too, if nobody answers.
    """
    host, _, port = folder.superlink.rpartition(":")
    name = host.strip("[]")
    try:
        trusted = ssl.create_default_context(cafile=str(folder.path / AUTHORITY))
        with (
            socket.create_connection((name, int(port)), 5.0) as line,
            trusted.wrap_socket(line, server_hostname=name),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        remedy = _REMEDIES.get(error.verify_code, _OTHER_AUTHORITY)
        words = one_line(error.verify_message).rstrip(".")
        return f"{folder.superlink} is not trusted ({words}): {remedy}"
    except (OSError, ValueError):
        return ""


def renew(folder: SuperLinkFolder, days: int, keeper: Path | None = None) -> datetime:
    """Renew the SuperLink's certificate for the same key and names; return its new end.

    Nodes trust the authority and need nothing new.

    Parameters
    ----------
    folder
        The SuperLink's folder.
    days
        Days of the new certificate.
    keeper
        Folder of the authority's key; None is the one beside the SuperLink's.

    Raises
    ------
    ConfigError
        If the authority's key is missing, or the authority's certificate ends before.
    """
    key = (keeper or folder.path.parent / KEEPER) / AUTHORITY_KEY
    if not key.is_file():
        raise ConfigError(
            f"{key.parent} lacks {AUTHORITY_KEY}: fetch the authority's key for the "
            "renewal, and name its folder by --authority"
        )
    end = valid_until(folder.path / AUTHORITY)
    left = (end - datetime.now(UTC)) // timedelta(days=1)
    if days > left:
        raise ConfigError(
            f"--days {days}: the authority's own certificate ends on {end:%Y-%m-%d}, in "
            f"{left} days: ask for fewer, or make a new federation"
        )
    try:
        authority = Certified(read_named(folder.path / AUTHORITY), read_named(key))
        own = read_named(folder.path / SERVER_KEY)
        renewed = make_server_certificate(authority, folder.hosts, days, own)
    except OSError as error:
        raise ConfigError(f"{folder.path} or {key}: {error.strerror}") from error
    except (ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{key}, {folder.path / SERVER_KEY} or {folder.path / AUTHORITY}: "
            f"{one_line(error)}: copy the folders of `fedsuite deploy init` again"
        ) from error
    atomic_write(folder.path / SERVER, renewed.certificate)
    os.chmod(folder.path / SERVER, 0o600)
    return valid_until(folder.path / SERVER)


_OTHER_NAME = (
    "`superlink` in node.toml needs a name of the certificate, or the server's operator "
    "adds this one to `hosts` of superlink.toml and types `fedsuite deploy renew`"
)
_REMEDIES = {
    9: "set this machine's clock, by NTP for example",
    10: "the server's operator types `fedsuite deploy renew`, and nothing changes here, "
    "if this machine's clock is right",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""By OpenSSL's number of the error: not yet valid, ended, another name, another address."""
_OTHER_AUTHORITY = (
    "another server answers there, or ca.crt is of another federation: copy it from the "
    "folder that was handed over"
)

_NEW_FEDERATION = (
    "`fedsuite deploy init` makes a new federation, whose folders all machines need"
)


def _check(path: Path, now: datetime | None, remedy: str) -> str:
    end = valid_until(path)
    left = end - (now or datetime.now(UTC))
    if left <= timedelta(0):
        raise ConfigError(f"{path} ended on {end:%Y-%m-%d}: {remedy}")
    if left > timedelta(days=WARN_DAYS):
        return ""
    return f"warning: {path} ends on {end:%Y-%m-%d}: {remedy}"
