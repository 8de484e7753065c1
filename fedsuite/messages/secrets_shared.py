"""Keys, shared secrets and signatures of secure sums, all by Flower's own functions.

Flower's masks are not among them: their seeds have 28 to 32 bits.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    sign_message,
    verify_signature,
)

from fedsuite.core.reading import read_named

PUBLIC_KEY_BYTES = 49
"""A point of P-384, compressed."""

SIGNATURE_BYTES = 153
"""The public key of who signs, and the signature, with zeros behind it."""

SEED_SHARE_BYTES = 52
KEY_SHARE_BYTES = 68
TOKEN_BYTES = 268
"""Two shares and two client numbers, encrypted."""

_CURVE = ec.SECP384R1()
_PRIVATE_BYTES = 48
_NUMBERS = 16

__all__ = ["combine_shares", "create_shares"]


def new_key_pair() -> tuple[bytes, bytes]:
    """Return a private key and its public key."""
    private, public = generate_key_pairs()
    number = private.private_numbers().private_value
    return number.to_bytes(_PRIVATE_BYTES, "big"), _point(public)


def is_public_key(key: bytes) -> bool:
    """Return whether bytes are a public key in the one form that it is sent in."""
    try:
        return _point(_public(key)) == key
    except ValueError:
        return False


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one; ValueError if it is none."""
    return _point(_private(private).public_key())


def agreed_key(private: bytes, public: bytes) -> bytes:
    """Return the text of the 32 bytes that the owners of two keys share."""
    return generate_shared_key(_private(private), _public(public))


def mask_key(private: bytes, public: bytes) -> bytes:
    """Return the 32 bytes from which the owners of two keys make their mask."""
    # Hashed: the text has six bits in each byte.
    return hashlib.sha256(b"mask" + agreed_key(private, public)).digest()


def sealed(key: bytes, sender: int, receiver: int, shares: tuple[bytes, bytes]) -> bytes:
    """Return two shares, encrypted for their receiver."""
    numbers = sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")
    return encrypt(key, numbers + b"".join(shares))


def unsealed(
    key: bytes, sender: int, receiver: int, token: bytes
) -> tuple[bytes, bytes] | None:
    """Return the shares in a token; None if it is no such sender's to this receiver."""
    try:
        plain = decrypt(key, token)
    except Exception:  # Whatever the library raises of what somebody else sent.
        return None
    numbers = sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")
    if len(plain) != _NUMBERS + SEED_SHARE_BYTES + KEY_SHARE_BYTES:
        return None
    if plain[:_NUMBERS] != numbers:
        return None
    shares = plain[_NUMBERS:]
    return shares[:SEED_SHARE_BYTES], shares[SEED_SHARE_BYTES:]


def digest(secret: bytes) -> bytes:
    """Return what a secret can be recognised by; it has too many values to be guessed."""
    return hashlib.sha256(secret).digest()


# ------------------------------------------------------------------------------ signatures


def signed(key_file: Path, words: bytes) -> bytes:
    """Return a signature of words by a node's registered key.

    Parameters
    ----------
    key_file
        The node's private key, in OpenSSH's form.
    words
        What to sign.

    Raises
    ------
    ValueError
        If the file holds no such key, or one that is not of P-384.
    """
    try:
        private = load_ssh_private_key(read_named(key_file), password=None)
    except (TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not of ECDSA")
    signer = _point(private.public_key())
    return (signer + sign_message(private, words)).ljust(SIGNATURE_BYTES, b"\0")


def signer_of(signature: bytes, words: bytes) -> bytes:
    """Return the public key by which words are signed; empty if they are not."""
    signer, der = signature[:PUBLIC_KEY_BYTES], signature[PUBLIC_KEY_BYTES:]
    try:
        # The second byte of a signature is its length.
        is_right = verify_signature(_public(signer), words, der[: der[1] + 2])
    except (ValueError, IndexError):
        return b""
    return signer if is_right else b""


def public_points(lines: Iterable[str]) -> frozenset[bytes]:
    """Return public keys of lines such as ``ecdsa-sha2-nistp384 AAAA... NAME``.

    Raises
    ------
    ValueError
        If a line is no such key, or one that is not of P-384.
    """
    points = set()
    for line in lines:
        try:
            key = load_ssh_public_key(line.strip().encode())
        except Exception as error:  # UnsupportedAlgorithm is no ValueError.
            raise ValueError(f"{line.strip()[:40]!r} is no public key") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"{line.strip()[:40]!r} is no key of ECDSA")
        points.add(_point(key))
    return frozenset(points)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    if not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"a key of {key.curve.name}, and secure sums take P-384")
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _public(point: bytes) -> ec.EllipticCurvePublicKey:
    if len(point) != PUBLIC_KEY_BYTES:
        raise ValueError("no public key")
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)


def _private(number: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(number, "big"), _CURVE)
