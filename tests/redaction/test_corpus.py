"""Every kind of secret in every place is gone, and look-alikes stay."""

from __future__ import annotations

import json

import pytest

from tests.redaction.corpus import BENIGN, KINDS, SHARED, benign, planted, redactor, told, trajectories


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_secret_is_told_nowhere(kind: str) -> None:
    rules = redactor()
    for case in planted(seed=7, each=2, only=kind):
        stored = json.dumps(rules.redact(case.record).record, ensure_ascii=False)
        assert not told(case.secret, stored), (case.place, case.secret)


@pytest.mark.parametrize("kind", BENIGN)
def test_what_only_looks_like_one_stays_as_it_is(kind: str) -> None:
    rules = redactor()
    for name, text in benign(seed=11, each=25):
        if name == kind:
            record = {"y": {"status": "ok", "result": text}}
            assert rules.redact(record).record == record, text


def test_real_trajectories_keep_their_numbers_ids_and_code() -> None:
    if not SHARED.exists():
        pytest.skip("needs the shared trajectories (EVOPLANE_SHARED)")
    rules = redactor()
    size = found = 0
    for name, record in trajectories():
        if name.startswith(("swe-agent", "reflexion", "intercode")):
            size += len(json.dumps(record))
            entities = rules.redact({"ext": {"record": record}}).entities
            found += sum(count for entity, count in entities.items() if entity != "EMAIL_ADDRESS")
    assert size > 1_500_000
    assert found <= 2 * size / 1_000_000, "more than two findings a megabyte in code that has no personal data"
