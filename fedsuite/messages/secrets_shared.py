"""Keys and shared secrets of secure sums, all by Flower's own functions.

Flower's masks are not among them: their seeds have 28 to 32 bits.
"""

import hashlib

from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

PUBLIC_KEY_BYTES = 215
SEED_SHARE_BYTES = 52
KEY_SHARE_BYTES = 324
TOKEN_BYTES = 612
"""Two shares and two client numbers, encrypted."""

_NUMBERS = 16

__all__ = ["combine_shares", "create_shares"]


def new_key_pair() -> tuple[bytes, bytes]:
    """Return a private key and its public key."""
    private, public = generate_key_pairs()
    return private_key_to_bytes(private), public_key_to_bytes(public)


def is_public_key(key: bytes) -> bool:
    """Return whether bytes are a public key in the one form that it is sent in."""
    try:
        return public_key_to_bytes(bytes_to_public_key(key)) == key
    except Exception:  # Whatever the library raises of what somebody else sent.
        return False


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one; ValueError if it is none."""
    try:
        return public_key_to_bytes(bytes_to_private_key(private).public_key())
    except Exception as error:
        raise ValueError("no private key") from error


def agreed_key(private: bytes, public: bytes) -> bytes:
    """Return the text of the 32 bytes that the owners of two keys share."""
    return generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))


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
