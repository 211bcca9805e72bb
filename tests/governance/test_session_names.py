"""A session id may hold personal data: it is stored under another name, and still finds its session."""

from __future__ import annotations

from services.proxy.clients import Claim
from services.proxy.conversation import fingerprints
from services.proxy.sessions import Sessions
from tests.proxy.test_restore import KEY


def hidden(tenant: str, text: str) -> str:
    return text.replace("ann@example.com", "<EMAIL_1>")


def test_a_session_rebuilt_under_its_stored_name_is_found_by_the_clients() -> None:
    before = Sessions()
    made = before.find(KEY, "deny", Claim("chat with <EMAIL_1>"), fingerprints([]), b"")
    after = Sessions(hidden)
    after.add(made)
    assert after.by_id(KEY, "chat with ann@example.com") is made
    assert after.find(KEY, "deny", Claim("chat with ann@example.com"), fingerprints([]), b"") is made
    assert after.by_id(KEY, "chat with bob") is None
