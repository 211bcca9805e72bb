"""Proof that a webhook comes from whom it says: HMAC-SHA256 in the forms that senders use.

github: `x-hub-signature-256: sha256=<hex>` of the body. stripe: `stripe-signature: t=<time>,v1=<hex>` of
`<time>.<body>`. zendesk: `x-zendesk-webhook-signature: <base64>` of `<time><body>`, the time in a header of
its own. hmac: a header of the sender's choice, hex or base64 of the body, with or without `sha256=`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from datetime import datetime

GITHUB = b"x-hub-signature-256"
STRIPE = b"stripe-signature"
ZENDESK = b"x-zendesk-webhook-signature"
ZENDESK_TIME = b"x-zendesk-webhook-signature-timestamp"


class BadSignature(Exception):
    """The request is not proven to come from the sender; the message never says what would have been right."""


def verify(
    scheme: str, header: str, secrets: Iterable[str], headers: Mapping[bytes, bytes], body: bytes, tolerance_s: float
) -> None:
    """Raises `BadSignature` unless one of the secrets signed this body, and lately where the scheme tells the time.

    `header` is the signature's header for the scheme `hmac`.
    """
    match scheme:
        case "github":
            signed, given = body, [_header(headers, GITHUB).removeprefix("sha256=")]
        case "stripe":
            signed, given = _stripe(_header(headers, STRIPE), body, tolerance_s)
        case "zendesk":
            at = _header(headers, ZENDESK_TIME)
            _recent(_moment(at), tolerance_s)
            signed, given = at.encode() + body, [_header(headers, ZENDESK)]
        case _:
            signed, given = body, [_header(headers, header.lower().encode()).removeprefix("sha256=")]
    digests = [hmac.new(secret.encode(), signed, hashlib.sha256).digest() for secret in secrets]
    candidates = [value for text in given for value in _values(text)]
    # every pair is compared, so that the time taken tells nothing
    if sum(hmac.compare_digest(digest, value) for digest in digests for value in candidates) == 0:
        raise BadSignature("The signature does not match.")


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    value = headers.get(name)
    if value is None:
        raise BadSignature(f"The header {name.decode()} is missing.")
    return value.decode("latin-1").strip()


def _stripe(header: str, body: bytes, tolerance_s: float) -> tuple[bytes, list[str]]:
    pairs = [part.split("=", 1) for part in header.split(",") if "=" in part]
    at = next((value for name, value in pairs if name.strip() == "t"), "")
    _recent(_moment(at), tolerance_s)
    return f"{at}.".encode() + body, [value for name, value in pairs if name.strip() == "v1"]


def _moment(text: str) -> float:
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise BadSignature("The signature has no readable time.") from error


def _recent(moment: float, tolerance_s: float) -> None:
    if abs(time.time() - moment) > tolerance_s:
        raise BadSignature("The signature is too old, or this machine's clock is wrong.")


def _values(text: str) -> list[bytes]:
    """The bytes of a digest written in hex or base64."""
    found = []
    with contextlib.suppress(ValueError):
        found.append(bytes.fromhex(text))
    with contextlib.suppress(ValueError):
        found.append(base64.b64decode(text, validate=True))
    return found
