"""Names for what was hidden: the same for the same value of one tenant, meaningless without its key.

A pseudonym is a keyed hash (HMAC-SHA-256, cut to 48 bits) of the value's exact spelling: stable over
events, restarts and gateways, so that a redacted trajectory still says that two mentions are one person.
"""

from __future__ import annotations

import hmac
import re

_HEX = 12
"""48 bits: two of a million values share a name with probability 0.002."""

PSEUDONYM = re.compile(r"<[A-Z][A-Z0-9_]*_[0-9a-f]{12}>")

_SHORT = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "MAC_ADDRESS": "MAC",
}


class Pseudonyms:
    def __init__(self, key: bytes) -> None:
        """`key` is the tenant's key for pseudonyms, 32 bytes."""
        self._keyed = hmac.new(key, digestmod="sha256")

    def name(self, entity: str, value: str) -> str:
        """`<EMAIL_3f9a2c51e07b>`."""
        # a copy, for `hmac.digest` lets go of Python's lock: in the event loop that may cost milliseconds
        name = self._keyed.copy()
        name.update(f"{entity}\0{value}".encode("utf-8", "surrogatepass"))
        return f"<{_SHORT.get(entity, entity)}_{name.hexdigest()[:_HEX]}>"


def mask(entity: str) -> str:
    """`<PASSWORD>`: says what it was, and nothing else."""
    return f"<{_SHORT.get(entity, entity)}>"
