"""What the clients ask: chat requests of about 1 kB, no two alike, each the first of a new conversation."""

from __future__ import annotations

import random
from dataclasses import dataclass

import orjson

_SYSTEM = (
    "You are a support agent of a shop. Answer in the customer's language, name the order you speak of, never promise "
    "a date that the carrier has not confirmed, and ask before you change anything. Use the tools you are given."
)
_SENTENCES = (
    "I ordered a pair of boots last week and the box came without them.",
    "The invoice names an address where I have not lived for years.",
    "Please tell me when the second half of the delivery can be expected.",
    "Your courier left it with a neighbour who is on holiday until Sunday.",
    "I would rather have my money back than wait for another one.",
    "The colour on the page was blue, what I hold in my hands is green.",
    "I have tried the voucher twice and both times it was refused.",
    "Could somebody look at the account, two orders seem to be mixed up there.",
    "The size chart says 42 and the label inside says 41.",
    "Nobody has answered the letter I sent about this on the third.",
    "It worked for a day and has not made a sound since then.",
    "My sister got the same one and hers is fine, so it can't be the manual.",
)
_SENTENCES_EACH = 7
_CONTACT_EVERY = 4
"""Every so many requests name an e-mail address and a telephone number, as customers do."""


@dataclass(frozen=True)
class Form:
    """How a target wants to be asked."""

    path: str
    model: str
    headers: tuple[tuple[str, str], ...] = ()


class Requests:
    """Makes requests, encoded; `seed` says which."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._made = 0

    def chat(self, form: Form, count: int, *, stream: bool = False) -> list[bytes]:
        """So many requests as they go on the wire."""
        return [self._one(form, stream) for _ in range(count)]

    def _one(self, form: Form, stream: bool) -> bytes:
        body: dict[str, object] = {
            "model": form.model,
            "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": self._said()}],
            "temperature": 0.7,
            "max_tokens": 256,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        encoded = orjson.dumps(body)
        headers = {
            "host": "127.0.0.1",
            "accept": "application/json",
            "content-type": "application/json",
            "content-length": str(len(encoded)),
            **dict(form.headers),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {form.path} HTTP/1.1\r\n{lines}\r\n".encode() + encoded

    def _said(self) -> str:
        self._made += 1
        number = self._chance.randrange(10**9)
        said = [f"This is about order A-{number:09}-{self._made}.", *self._chance.sample(_SENTENCES, _SENTENCES_EACH)]
        if self._made % _CONTACT_EVERY == 0:
            said.append(f"Write to customer{number}@example.org or call 030 {number % 10**7:07}.")
        return " ".join(said)
