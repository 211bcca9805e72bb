"""A policy may name everything that is found."""

from __future__ import annotations

from services.proxy.redaction.catalogue import ENTITIES
from tests.redaction.corpus import KINDS, planted, redactor


def test_the_catalogue_has_every_entity_that_is_found_in_the_corpus() -> None:
    rules = redactor()
    cases = [case for kind in KINDS for case in planted(seed=3, each=1, only=kind)]
    found = {entity for case in cases for entity in rules.redact(case.record).entities}
    assert len(found) > 10
    assert found <= ENTITIES
