"""The fingerprints of a conversation: which requests continue which, without keeping what was said.

Hashes are keyed by tenant: a plain hash of a short message that holds a phone number could be guessed.
They are stored with each call (`ext.links`), so that a restart finds its sessions again whatever has
been redacted since.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from atdp import messages

Hash = bytes
NOTHING_SAID: Hash = b""
"""The running hash before the first message."""

_SYSTEM = ("system", "developer")


class Seed(msgspec.Struct, frozen=True, gc=False):
    """Where a conversation goes on from that the request does not repeat."""

    exact: Hash = NOTHING_SAID
    meaning: Hash = NOTHING_SAID
    length: int = 0
    """Messages before the first of the request."""


_START = Seed()


class Fingerprints(msgspec.Struct, frozen=True):
    """Of a list of messages; each list has one entry a message."""

    key: bytes
    said: list[dict[str, Any]]
    """The messages themselves."""
    pieces: list[Hash]
    """Of each message alone, in its exact form."""
    exact: list[Hash]
    """Of all messages up to this one, in their exact form."""
    meanings: list[Hash]
    """Of what all messages up to this one say. System messages at the beginning say nothing: a hand-off
    changes them and the conversation goes on."""
    system: Hash
    """Of those system messages, and of instructions that have a field of their own."""


def fingerprints(
    said: list[dict[str, Any]], instructions: Any = None, key: bytes = b"", seed: Seed | None = None
) -> Fingerprints:
    """The fingerprints of a request's messages."""
    seed = seed or _START
    pieces: list[Hash] = []
    exact: list[Hash] = []
    meanings: list[Hash] = []
    system = b"" if instructions is None else digest(key, msgspec.json.encode(instructions, order="sorted"))
    last_exact, last_meaning = seed.exact, seed.meaning
    for message in said:
        piece = _piece(message, key)
        last_exact = digest(key, last_exact + piece)
        if last_meaning == NOTHING_SAID and message["role"] in _SYSTEM:
            system = digest(key, system + piece)
        else:
            last_meaning = digest(key, last_meaning + messages.meaning(message))
        pieces.append(piece)
        exact.append(last_exact)
        meanings.append(last_meaning)
    return Fingerprints(key, said, pieces, exact, meanings, system)


def after(prints: Fingerprints, answer: dict[str, Any], key: bytes, seed: Seed | None = None) -> tuple[Hash, Seed]:
    """The fingerprint of an answer alone, and of the conversation that it ends."""
    seed = seed or _START
    exact = prints.exact[-1] if prints.exact else seed.exact
    meaning = prints.meanings[-1] if prints.meanings else seed.meaning
    piece = _piece(answer, key)
    length = seed.length + len(prints.pieces) + 1
    return piece, Seed(digest(key, exact + piece), digest(key, meaning + messages.meaning(answer)), length)


def digest(key: bytes, data: bytes) -> Hash:
    return hashlib.blake2b(data, digest_size=16, key=key[:64]).digest()


def _piece(message: dict[str, Any], key: bytes) -> Hash:
    exact = {name: value for name, value in message.items() if name != "finish_reason"}
    return digest(key, msgspec.json.encode(exact, order="sorted"))
