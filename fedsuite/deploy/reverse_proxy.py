"""The reverse proxy before the SuperLink, which lets sites reach only what SuperNodes need.

A SuperLink of Flower 1.40 and later serves three APIs on one port. The Fleet API asks each
node for its registered key. The Control API starts runs and registers keys, and asks for no
key. So the SuperLink listens on its own machine alone, and nginx passes on the Fleet API's
paths. In Flower 1.39 the Fleet API has its own port and needs no proxy.
"""

import ipaddress
from pathlib import Path

from fedsuite.core.errors import ConfigError
from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.engines.ports import LOOPBACK

OPEN = "--open-control-api"

CONNECTIONS = 8192
"""Connections that one process of nginx holds: those to the SuperLink count too."""

REQUESTS_OF_ONE_ADDRESS = 256
"""Requests of one address at a time. A SuperNode has at most about five, and sites behind
one router have one address."""

SECONDS_FOR_A_HEADER = 10
"""Within which a connection must have sent its handshake, and each request its header."""


def check_listening(port: int, fleet_port: int, bind: str, opens: bool) -> str:
    """Return a warning about an address that other machines reach, or nothing.

    Parameters
    ----------
    port, fleet_port
        Ports of the SuperLink and of the nodes' connections.
    bind
        Address to listen on.
    opens
        Whether the Control API may be open to other machines.

    Raises
    ------
    ConfigError
        If the Control API would be open and may not, or the address cannot be used.
    """
    own = _is_loopback(bind)
    if opens and own:
        raise ConfigError(
            f"{OPEN} does nothing with --bind {bind}, which only this machine reaches: "
            "leave it out, or name another address"
        )
    grpc = fleet_is_grpc()
    if grpc and port == fleet_port:
        raise ConfigError(
            f"port {port} is both the SuperLink's and that of the SuperNodes, and "
            "this Flower needs two: `fedsuite deploy init` with --port and --fleet-port"
        )
    if own or (grpc and not opens):
        return ""
    if not opens:
        raise ConfigError(
            f"--bind {bind}: whoever reaches port {port} could run code at all sites, "
            "without any key: leave --bind out and put nginx in front "
            f"(deploy/README.md), or take the risk with {OPEN}"
        )
    if not ipaddress.ip_address(bind).is_unspecified:
        raise ConfigError(
            f"--bind {bind}: programs of this machine reach the SuperLink at {LOOPBACK}: "
            "use 0.0.0.0"
        )
    if not grpc and port != fleet_port:
        raise ConfigError(
            f"nodes dial port {fleet_port}, and without nginx nothing but port "
            f"{port} listens: `fedsuite deploy init` with --fleet-port {port}"
        )
    return (
        f"warning: the Control API is open on {bind}:{port}: whoever reaches that port can "
        "run code at all sites, without any key, unless something in between lets "
        "/v1/fleet/ alone through"
    )


def proxy_command(folder: Path) -> list[str]:
    """Return nginx's command for the ``nginx.conf`` in the SuperLink's folder.

    nginx runs as the folder's owner: the port is above 1023, and only the owner may read
    the keys.
    """
    own = ("-e", "stderr", "-g", "daemon off;")
    return ["nginx", "-p", str(folder), "-c", "nginx.conf", *own]


def nginx_config(port: int, fleet_port: int, keys: str = "", temporary: str = "") -> str:
    """Return nginx's configuration of the reverse proxy.

    Parameters
    ----------
    port
        Port of the SuperLink on 127.0.0.1.
    fleet_port
        Port for sites.
    keys
        Path prefix of certificates and key; empty for files in nginx's prefix (``nginx
        -p``).
    temporary
        Path prefix of the files that nginx makes.
    """
    return f"""\
# The reverse proxy: sites may reach what SuperNodes need, and nothing else.
#
# A SuperLink (flwr 1.40 and later) serves three APIs on one port. The Fleet API asks each
# node for its registered key; the Control API, which starts runs and registers keys, asks
# nobody. So the SuperLink listens on 127.0.0.1, and this passes on /v1/fleet/ alone.
worker_processes auto;
worker_rlimit_nofile {2 * CONNECTIONS};
pid {temporary}nginx.pid;
error_log stderr warn;

events {{
    worker_connections {CONNECTIONS};
}}

http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {temporary}client-body;
    proxy_temp_path {temporary}proxy;
    fastcgi_temp_path {temporary}fastcgi;
    uwsgi_temp_path {temporary}uwsgi;
    scgi_temp_path {temporary}scgi;

    # Who connects and sends half a handshake, or half a header, holds a connection for this
    # long. limit_conn counts requests alone, whose header is there.
    client_header_timeout {SECONDS_FOR_A_HEADER}s;
    reset_timedout_connection on;
    limit_conn_zone $binary_remote_addr zone=addresses:1m;
    limit_conn addresses {REQUESTS_OF_ONE_ADDRESS};

    server {{
        listen {fleet_port} ssl;
        ssl_certificate {keys}server.pem;
        ssl_certificate_key {keys}server.key;
        ssl_protocols TLSv1.2 TLSv1.3;

        # The largest message of a node; models of up to 128 million parameters in float32.
        client_max_body_size 512m;

        location /v1/fleet/ {{
            # With a path, so that nginx sends the path that it has understood.
            proxy_pass https://{LOOPBACK}:{port}/v1/fleet/;
            proxy_http_version 1.1;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_trusted_certificate {keys}ca.crt;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_send_timeout 300s;
        }}

        location / {{
            return 404;
        }}
    }}
}}
"""


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        raise ConfigError(f"--bind {bind}: expected an IP address") from None
