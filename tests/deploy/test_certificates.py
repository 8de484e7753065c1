"""Certificates and keys: what they are for, whom they name, and that TLS takes them."""

import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedsuite.deploy.certificates import (
    Certified,
    make_authority,
    make_node_key,
    make_server_certificate,
)

AUTHORITY = make_authority("test", 10)


def certificate(made: Certified) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate)


def names(made: Certified) -> tuple[list[str], list[str]]:
    """Return host names and addresses of a server's certificate."""
    found = certificate(made).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    addresses = found.value.get_values_for_type(x509.IPAddress)
    return found.value.get_values_for_type(x509.DNSName), [str(a) for a in addresses]


def test_the_authority_may_sign_certificates_but_no_further_authority() -> None:
    found = certificate(AUTHORITY).extensions
    basic = found.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0
    usage = found.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign and not usage.digital_signature


def test_a_server_is_named_by_all_its_hosts_and_by_loopback() -> None:
    made = make_server_certificate(
        AUTHORITY, ["fed.example.org", "192.0.2.7", "2001:db8::1"], 10
    )
    hosts, addresses = names(made)
    assert hosts == ["fed.example.org", "localhost"]
    assert addresses == ["192.0.2.7", "2001:db8::1", "127.0.0.1"]
    basic = certificate(made).extensions.get_extension_for_class(x509.BasicConstraints)
    assert not basic.value.ca
    certificate(made).verify_directly_issued_by(certificate(AUTHORITY))


@pytest.mark.parametrize("days", [1, 400])
def test_days_are_counted_from_now(days: int) -> None:
    for made in (
        make_authority("test", days),
        make_server_certificate(AUTHORITY, ["a"], days),
    ):
        end = certificate(made).not_valid_after_utc
        assert abs(end - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=1)
        assert certificate(made).not_valid_before_utc < datetime.now(UTC)


def test_a_node_s_key_is_one_that_flower_takes() -> None:
    made = make_node_key("hospital-a")
    private = load_ssh_private_key(made.private, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    public = load_ssh_public_key(made.public)
    assert public == private.public_key()
    assert made.public.startswith(b"ecdsa-sha2-nistp384 ")
    assert made.public.endswith(b" hospital-a\n")
    other = load_ssh_public_key(make_node_key("hospital-a").public)
    as_bytes = [
        k.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for k in (public, other)
    ]
    assert as_bytes[0] != as_bytes[1]


def serve_once(made: Certified, folder: Path) -> int:
    """Answer one TLS handshake on a port of loopback, and return the port."""
    (folder / "cert").write_bytes(made.certificate)
    (folder / "key").write_bytes(made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener:
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    threading.Thread(target=answer, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("trusted", "host", "reason"),
    [
        (AUTHORITY, "127.0.0.1", None),
        (AUTHORITY, "localhost", None),
        (AUTHORITY, "fed.example.org", None),
        (AUTHORITY, "evil.example.org", "doesn't match|mismatch"),
        (make_authority("test", 10), "127.0.0.1", "verify failed"),
    ],
)
def test_tls_takes_what_is_named_and_nothing_else(
    trusted: Certified, host: str, reason: str | None, tmp_path: Path
) -> None:
    port = serve_once(make_server_certificate(AUTHORITY, ["fed.example.org"], 5), tmp_path)
    context = ssl.create_default_context(cadata=trusted.certificate.decode())

    def connect() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            context.wrap_socket(plain, server_hostname=host).close()

    if reason is None:
        connect()
        return
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        connect()


def test_addresses_are_not_written_as_names() -> None:
    _, addresses = names(make_server_certificate(AUTHORITY, ["10.0.0.1"], 5))
    assert {ipaddress.ip_address(a) for a in addresses} == {
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_address("127.0.0.1"),
    }
