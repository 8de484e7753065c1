"""A federation's certificate authority, server certificate and node keys."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ALWAYS_NAMED = ("localhost", "127.0.0.1")
"""Names by which programs on the SuperLink's machine reach it."""

_CLOCKS_DIFFER = timedelta(days=1)
_OTHER_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Certified:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class KeyPair:
    """A node's key: the private one as OpenSSH writes it, the public one as one line."""

    private: bytes
    public: bytes


def make_authority(name: str, days: int) -> Certified:
    """Return a self-signed certificate authority, valid for some days from now."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject(name)
    others = dict.fromkeys(_OTHER_USES, False)
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **others)
    public = key.public_key()
    certificate = (
        _builder(subject, subject, public, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Certified(certificate.public_bytes(Encoding.PEM), _pem(key))


def make_server_certificate(
    authority: Certified, hosts: Sequence[str], days: int, key: bytes | None = None
) -> Certified:
    """Return a server's certificate, signed by the authority.

    Parameters
    ----------
    hosts
        Names and IP addresses by which clients reach the server, beside
        :data:`ALWAYS_NAMED`.
    days
        Days of validity from now, at least 1.
    key
        The server's private key; None makes one.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = _load_key(authority.key)
    own = ec.generate_private_key(ec.SECP384R1()) if key is None else _load_key(key)
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *ALWAYS_NAMED))]
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())  # type: ignore[arg-type]
    certificate = (
        _builder(_subject(hosts[0]), signer.subject, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(server, critical=False)
        .add_extension(issued_by, critical=False)
        .sign(signing_key, hashes.SHA384())
    )
    return Certified(certificate.public_bytes(Encoding.PEM), _pem(own))


def make_node_key(name: str) -> KeyPair:
    """Return a key for a node: ECDSA on P-384, as Flower asks for."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return KeyPair(private, public + f" {name}\n".encode())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    # A common name may have 64 characters; the names that count stand elsewhere.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("a key that is not of an elliptic curve")
    return key
