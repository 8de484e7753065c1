"""Folders of a federation, one for the SuperLink and one per site.

    FEDERATION/authority/ca.key              signs certificates; needed for renewals alone
    FEDERATION/superlink/superlink.toml      addresses and the names of the nodes
    FEDERATION/superlink/ca.crt              the authority's certificate
    FEDERATION/superlink/server.pem server.key
    FEDERATION/superlink/nodes/NAME.pub      the keys that may join
    FEDERATION/superlink/superexec.secret    between the SuperLink and its helper
    FEDERATION/superlink/nginx.conf          the proxy, where SuperNodes have another port
    FEDERATION/nodes/NAME/node.toml          name, where the SuperLink is, node-config
    FEDERATION/nodes/NAME/ca.crt key key.pub superexec.secret
    FEDERATION/nodes/NAME/schema.json        the schema of all sites' tables, if any
    FEDERATION/nodes/NAME/policy.toml        what the site lets apps do and lets out
    FEDERATION/nodes/NAME/partners.pub       with whom alone the site adds up, if it says so
    FEDERATION/nodes/NAME/ledger.jsonl       what has left, once apps have run
    FEDERATION/*/install/                    the wheel and requirements.txt, if handed out

A node's folder holds nothing of other nodes. A private key is in one folder alone.
"""

import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedsuite.core.errors import ConfigError, one_line
from fedsuite.core.files import atomic_write, write_error
from fedsuite.core.keys import Value
from fedsuite.core.reading import read_named
from fedsuite.core.text import escape_taken, is_file_name, read_text, read_toml
from fedsuite.data.schema import TableSchema
from fedsuite.deploy.certificates import (
    make_authority,
    make_node_key,
    make_server_certificate,
)
from fedsuite.deploy.relay.policy import Policy
from fedsuite.deploy.reverse_proxy import nginx_config
from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.experiment.plug_ins import ALLOWED_CODE
from fedsuite.messages.records import PARTNERS

SUPERLINK, NODES, KEEPER = "superlink", "nodes", "authority"
SUPERLINK_FILE, NODE_FILE = "superlink.toml", "node.toml"
AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
NODE_KEY, NODE_PUBLIC_KEY = "key", "key.pub"
PARTNERS_FILE = "partners.pub"
SECRET = "superexec.secret"
PROXY = "nginx.conf"
SCHEMA = "schema.json"
POLICY = "policy.toml"
INSTALL, REQUIREMENTS = "install", "requirements.txt"
RUNS = "runs"
AUTHORITY_DAYS = 3650
PORT, FLEET_PORT = 8000, 8443

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
_NODE_TABLE = "node-config"


@dataclass(frozen=True)
class SuperLinkFolder:
    """A SuperLink's folder.

    Parameters
    ----------
    hosts
        Names and addresses of the certificate; nodes use the first.
    port, fleet_port
        Ports for commands and for SuperNodes: one port since Flower 1.40.
    nodes
        Names of the nodes, in the order of their partitions.
    """

    path: Path
    hosts: tuple[str, ...]
    port: int
    fleet_port: int
    nodes: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> "SuperLinkFolder":
        """Read a folder of :func:`init_federation`, or raise :class:`ConfigError`."""
        file = path / SUPERLINK_FILE
        values = _read(file, ("hosts", "port", "fleet-port", "nodes"))
        ports = _ports(file, values)
        hosts, nodes = (_texts(file, name, values[name]) for name in ("hosts", "nodes"))
        for name in nodes:
            if not is_file_name(name, 63):
                raise ConfigError(f"{file}: node {name!r:.80} has no name of a folder")
        folder = cls(path.resolve(), hosts, *ports, nodes)
        keys = [f"{NODES}/{name}.pub" for name in folder.nodes]
        _need(path, (AUTHORITY, SERVER, SERVER_KEY, SECRET, *keys))
        return folder

    def public_key(self, name: str) -> Path:
        """Return the file of the key by which a node joins."""
        return self.path / NODES / f"{name}.pub"

    def save(self) -> None:
        """Write :data:`SUPERLINK_FILE`: addresses, and names of the nodes."""
        values: dict[str, Any] = {"hosts": list(self.hosts), "port": self.port}
        values |= {"fleet-port": self.fleet_port, "nodes": list(self.nodes)}
        _replace(self.path / SUPERLINK_FILE, tomli_w.dumps(values).encode())


@dataclass(frozen=True)
class NodeFolder:
    """A SuperNode's folder.

    Parameters
    ----------
    superlink
        ``HOST:PORT`` of the SuperLink's Fleet API.
    config
        The node's configuration, which its clients see.
    preload
        Whether ClientApps start with torch and Flower loaded; see
        :mod:`fedsuite.deploy.preloaded.superexec`. A site with a policy has no such.
    policy
        What the site lets apps do and lets out; None lets them do and send anything.
    """

    path: Path
    name: str
    superlink: str
    config: Mapping[str, Value] = field(default_factory=dict)
    preload: bool = True
    policy: Policy | None = None

    @classmethod
    def load(cls, path: Path) -> "NodeFolder":
        """Read a folder of :func:`init_federation`, or raise :class:`ConfigError`."""
        values = _read(path / NODE_FILE, ("name", "superlink"))
        _need(path, (AUTHORITY, NODE_KEY, SECRET))
        config = values.get(_NODE_TABLE, {})
        if not isinstance(config, dict):
            raise ConfigError(
                f"{path / NODE_FILE}: {_NODE_TABLE} is no table: write [{_NODE_TABLE}] on "
                "a line of its own"
            )
        for name, value in config.items():
            if not isinstance(value, bool | int | float | str):
                raise ConfigError(
                    f"{path / NODE_FILE}: {_NODE_TABLE} key {name} holds a "
                    f"{type(value).__name__}: expected a string, a number or a boolean"
                )
            if isinstance(value, str) and (words := escape_taken(value)):
                raise ConfigError(
                    f"{path / NODE_FILE}: {_NODE_TABLE} key {name} = {value!r}: {words}"
                )
        preload = values.get("preload", True)
        if not isinstance(preload, bool):
            raise ConfigError(
                f"{path / NODE_FILE}: key preload is {preload!r}: expected true or false"
            )
        policy = Policy.load(path / POLICY) if (path / POLICY).exists() else None
        if policy is not None and policy.apps.code:
            config = {**config, ALLOWED_CODE: policy.apps.code}
        if (path / PARTNERS_FILE).exists():
            config = {**config, PARTNERS: _partners(path / PARTNERS_FILE)}
        name, superlink = str(values["name"]), str(values["superlink"])
        if isinstance(config.get("schema"), str):
            # The copy in this folder, wherever the folder is now.
            config = {**config, "schema": str(path.resolve() / str(config["schema"]))}
        return cls(path.resolve(), name, superlink, config, preload, policy)


def _partners(path: Path) -> str:
    """Return the public keys of a file that has one a line, with commas between them."""
    # Its cryptography takes a while to load.
    from fedsuite.messages.secrets_shared import public_points

    try:
        lines = [line.strip() for line in read_text(path).splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        # The third word is a name, of whatever letters.
        keys = [" ".join(line.split()[:2]) for line in keys]
        public_points(keys)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {one_line(error)}") from None
    if not keys:
        raise ConfigError(f"{path} names nobody: add the key.pub of each partner, or go")
    return ",".join(keys)


def init_federation(
    folder: Path,
    hosts: Sequence[str],
    nodes: Sequence[str],
    *,
    port: int = PORT,
    fleet_port: int | None = FLEET_PORT,
    days: int = 365,
    schema: Path | None = None,
    policy: str = "",
    wheel: Path | None = None,
) -> None:
    """Make the folders of a federation, with fresh keys and certificates.

    Parameters
    ----------
    folder
        New or empty folder.
    hosts
        Names and IP addresses of the SuperLink, the usual one first.
    nodes
        Names of the nodes, in the order of their partitions.
    port
        Port of the SuperLink, for its own machine alone.
    fleet_port
        Port that SuperNodes dial: the proxy's port, or in Flower 1.39 the Fleet API's. None
        is ``port``, without a proxy.
    days
        Days of the server's certificate. The authority's certificate holds ten years, so
        that renewal needs no new folders for the nodes.
    schema
        Schema of the sites' tables, of which each node's folder gets a copy.
    policy
        Text of each node's policy; empty writes none, and a node then lets all out.
    wheel
        Wheel of a ``dist`` folder. Each machine's folder gets a copy, with the requirements
        beside it.

    Raises
    ------
    ConfigError
        If a name cannot be used, the folder is not empty, or the wheel is not the one of
        the requirements beside it.
    """
    _check(folder, hosts, nodes, days)
    extras = _Extras.read(schema, policy, wheel)
    fleet = port if fleet_port is None else fleet_port
    authority = make_authority("fedsuite federation", max(days, AUTHORITY_DAYS))
    server = make_server_certificate(authority, hosts, days)
    path = folder / SUPERLINK
    _write(path / AUTHORITY, authority.certificate)
    # Not the server's: whoever takes the server over could make certificates for others.
    _write(folder / KEEPER / AUTHORITY_KEY, authority.key)
    _write(path / SERVER, server.certificate)
    _write(path / SERVER_KEY, server.key)
    _write(path / SECRET, secrets.token_hex(32).encode())
    for name, content in extras.installation.items():
        _write(path / INSTALL / name, content)
    superlink = SuperLinkFolder(path, tuple(hosts), port, fleet, tuple(nodes))
    for name in nodes:
        _write_node(superlink, name, folder / NODES / name, extras)
    if fleet != port and not fleet_is_grpc():
        _write(path / PROXY, nginx_config(port, fleet).encode())
    # Last, so that a folder with this file is whole.
    superlink.save()


def add_nodes(
    superlink: SuperLinkFolder,
    names: Sequence[str],
    output: Path,
    *,
    schema: Path | None = None,
    policy: str = "",
    wheel: Path | None = None,
) -> SuperLinkFolder:
    """Make folders for more nodes of a federation; return its SuperLink's folder.

    Parameters
    ----------
    names
        Names of the nodes. Their partitions come after those of the others.
    output
        Folder for one new folder per node.
    schema, policy, wheel
        As for :func:`init_federation`.

    Raises
    ------
    ConfigError
        If a name cannot be used or is taken, or a folder is there.
    """
    nodes = (*superlink.nodes, *names)
    _check_names(nodes)
    extras = _Extras.read(schema, policy, wheel)
    _refuse_present([output / name for name in names])
    larger = replace(superlink, nodes=nodes)
    for name in names:
        _write_node(larger, name, output / name, extras)
    larger.save()
    return larger


def remove_nodes(superlink: SuperLinkFolder, names: Sequence[str]) -> SuperLinkFolder:
    """Take nodes and their keys out of a SuperLink's folder; return it.

    Raises
    ------
    ConfigError
        If it has no such node, or would have none left.
    """
    _need_nodes(superlink, names)
    rest = tuple(name for name in superlink.nodes if name not in names)
    if not rest:
        raise ConfigError(f"{superlink.path}: one node must be left")
    smaller = replace(superlink, nodes=rest)
    smaller.save()
    for name in names:
        superlink.public_key(name).unlink(missing_ok=True)
    return smaller


def replace_keys(superlink: SuperLinkFolder, names: Sequence[str], output: Path) -> None:
    """Make new keys for nodes: ``key`` and ``key.pub`` in a folder per node.

    Parameters
    ----------
    output
        Folder for one new folder per node, whose two files replace the node's own.

    Raises
    ------
    ConfigError
        If the SuperLink's folder has no such node, or a folder is there.
    """
    _need_nodes(superlink, names)
    _refuse_present([output / name for name in names])
    for name in names:
        _replace(superlink.public_key(name), _write_keys(output / name, name))


@dataclass(frozen=True)
class _Extras:
    """What a node's folder holds beside keys and addresses."""

    schema: TableSchema | None
    policy: str
    installation: Mapping[str, bytes]

    @classmethod
    def read(cls, schema: Path | None, policy: str, wheel: Path | None) -> "_Extras":
        table = None if schema is None else TableSchema.load(schema)
        return cls(table, policy, {} if wheel is None else _installation(wheel))


def _write_node(superlink: SuperLinkFolder, name: str, node: Path, extras: _Extras) -> None:
    """Write a node's folder, and its public key into the SuperLink's."""
    public_key = _write_keys(node, name)
    _write(node / AUTHORITY, read_named(superlink.path / AUTHORITY))
    _write(node / SECRET, secrets.token_hex(32).encode())
    nodes = superlink.nodes
    config: dict[str, Value] = {
        "partition-id": nodes.index(name),
        "num-partitions": len(nodes),
    }
    if extras.schema is not None:
        _write(node / SCHEMA, f"{extras.schema.to_json()}\n".encode())
        config["schema"] = SCHEMA
    if extras.policy:
        _write(node / POLICY, extras.policy.encode())
    for file_name, content in extras.installation.items():
        _write(node / INSTALL / file_name, content)
    address = f"{_bracketed(superlink.hosts[0])}:{superlink.fleet_port}"
    text = {"name": name, "superlink": address, _NODE_TABLE: config}
    _write(node / NODE_FILE, tomli_w.dumps(text).encode())
    _replace(superlink.public_key(name), public_key)


def _write_keys(node: Path, name: str) -> bytes:
    """Write new keys into a node's folder; return the public one."""
    key = make_node_key(name)
    _write(node / NODE_KEY, key.private)
    _write(node / NODE_PUBLIC_KEY, key.public)
    return key.public


def _need_nodes(superlink: SuperLinkFolder, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ConfigError(f"nodes {', '.join(names)}: each name must be there once")
    for name in names:
        if name not in superlink.nodes:
            raise ConfigError(
                f"{superlink.path / SUPERLINK_FILE} has no node {name!r}; its nodes: "
                f"{', '.join(superlink.nodes)}"
            )


def _refuse_present(folders: Sequence[Path]) -> None:
    for path in folders:
        if path.exists():
            raise ConfigError(f"folder {path} is there: name another place by --output")


def _check(folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder {folder} is not empty: name another one")
    if not hosts or not nodes:
        raise ConfigError("name at least one host of the SuperLink, and one node")
    for host in hosts:
        if not _is_host(host):
            raise ConfigError(
                f"host {host!r}: expected a name such as fed.example.org, or an address, "
                "without scheme and port"
            )
    _check_names(nodes)
    if days < 1:
        raise ConfigError(f"days = {days}: expected at least 1")


def _check_names(nodes: Sequence[str]) -> None:
    for name in nodes:
        if not is_file_name(name, 63):
            raise ConfigError(
                f"node {name!r}: expected letters, digits, dots, dashes and underscores, "
                "63 at most, starting with a letter or digit, and no name of a device on "
                "Windows, such as nul"
            )
    if len({name.lower() for name in nodes}) < len(nodes):
        raise ConfigError(f"nodes {', '.join(nodes)}: each name must be there once")


def _installation(wheel: Path) -> dict[str, bytes]:
    """Return a wheel and its requirements, whose hash of the wheel must be right."""
    requirements = wheel.parent / REQUIREMENTS
    for path in (wheel, requirements):
        if not path.is_file():
            raise ConfigError(
                f"there is no {path}: `make dist` in a clone makes both in dist/"
            )
    files = {path.name: path.read_bytes() for path in (wheel, requirements)}
    digest = hashlib.sha256(files[wheel.name]).hexdigest()
    if f"--hash=sha256:{digest}".encode() not in files[REQUIREMENTS].split():
        raise ConfigError(
            f"{requirements} has not the hash of {wheel.name}, {digest}: one of them was "
            "changed, take both from one `make dist`"
        )
    return files


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        looks_like_address = text.replace(".", "").isdigit()
        return bool(_HOST_NAME.fullmatch(text)) and not looks_like_address
    return True


def _bracketed(host: str) -> str:
    """Return a host for use before a colon and a port."""
    return f"[{host}]" if ":" in host else host


def _write(path: Path, content: bytes) -> None:
    """Write a file in a folder, both readable by the owner alone."""
    _make_folder(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
    except OSError as error:
        raise write_error(path, error) from error


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step, as :func:`_write`, also where there is one."""
    _make_folder(path.parent)
    atomic_write(path, content)
    path.chmod(0o600)


def _make_folder(path: Path) -> None:
    # Path.mkdir sets the mode of the last folder only, not of its parents.
    if not path.exists():
        _make_folder(path.parent)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise write_error(path, error) from error


def _read(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read a TOML file of a folder, which must have these names."""
    kind = "superlink" if path.name == SUPERLINK_FILE else "node's"
    try:
        values = read_toml(path)
    except OSError:
        raise ConfigError(
            f"{path.parent} holds no {path.name}: give the {kind} folder that "
            "`fedsuite deploy init` made"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for name in names:
        if name not in values:
            raise ConfigError(f"{path} lacks {name}: make the folder again")
    return values


def _ports(file: Path, values: Mapping[str, Any]) -> tuple[int, int]:
    port, fleet_port = values["port"], values["fleet-port"]
    for value in (port, fleet_port):
        if type(value) is not int or not 0 < value < 2**16:
            raise ConfigError(f"{file}: port {value!r:.80}: expected 1 to 65535")
    return port, fleet_port


def _texts(file: Path, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{file}: {name} = {value!r:.80}: expected a list of names")
    if not value:
        raise ConfigError(f"{file}: {name} is empty: make the folder again")
    return tuple(value)


def _need(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} lacks {name}: copy the whole folder that `fedsuite deploy init` "
                "made"
            )
