"""A tenant's own patterns can't stop the gateway."""

from __future__ import annotations

import time

import pytest

from registry.tenant_policy import Dictionary, TenantPolicy
from services.proxy.redaction.pseudonyms import Pseudonyms
from services.proxy.redaction.redact import Redactor


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(x|x)+y", "x*x*x*x*x*x*x*y"])
def test_a_pattern_that_runs_away_ends_and_what_it_searched_is_not_stored_in_the_clear(pattern: str) -> None:
    policy = TenantPolicy(dictionaries=(Dictionary(name="names", patterns=(pattern,)),))
    text = "a" * 60 + "!" if pattern.startswith("(a") else "x" * 60
    began = time.process_time()
    redacted = Redactor(policy, Pseudonyms(b"k" * 32)).redact({"content": text})
    assert time.process_time() - began < 2
    assert redacted.failed or redacted.record["content"] != text or pattern.startswith("x*")
