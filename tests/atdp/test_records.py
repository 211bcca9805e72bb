"""Records conform to their schema, and a chain shows every change."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from atdp import chain, schema
from atdp.canonical import digest
from atdp.conformance import check
from tests.shared import SHARED

EXAMPLES = SHARED / "atdp" / "examples.json"


def body(**more: Any) -> dict[str, Any]:
    return {
        "atdp": "1.0",
        "record": "event",
        "id": "e1",
        "trajectory_id": "t1",
        "kind": "llm_call",
        "time": "2026-01-01T00:00:00.000Z",
        "ctx": digest({}),
        "y": {"status": "ok"},
        **more,
    }


def chained(count: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for index in range(count):
        previous = records[-1]["hash"] if records else None
        records.append(chain.seal(body(id=f"e{index}", duration_ms=float(index)), index, previous))
    return records


def test_the_schema_in_the_repository_is_the_one_the_structs_say() -> None:
    assert schema.SCHEMA_FILE.read_text() == schema.render(), "run `python -m atdp.schema`"


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.build())


@pytest.fixture(scope="module")
def examples() -> dict[str, dict[str, Any]]:
    if not EXAMPLES.exists():
        pytest.skip("the published examples are not beside this checkout")
    return json.loads(EXAMPLES.read_text())


def test_the_published_examples_conform_to_the_schema_and_the_structs(examples: dict[str, dict[str, Any]]) -> None:
    validator = jsonschema.Draft202012Validator(schema.build())
    for name, record in examples.items():
        assert not [error.message for error in validator.iter_errors(record)], name
        again = json.loads(msgspec.json.encode(schema.decode(record)))
        assert again == record, name


def test_the_published_examples_have_the_hashes_that_were_published(examples: dict[str, dict[str, Any]]) -> None:
    for name, record in examples.items():
        if record["record"] == "context":
            assert digest(record["body"]) == record["id"]
        else:
            assert chain.record_hash(record) == record["hash"], name


@pytest.mark.parametrize(
    "change", [{"unknown": 1}, {"y": {"status": "fine"}}, {"kind": "llmcall"}, {"seq": -1}, {"ctx": "sha256:1"}]
)
def test_a_record_that_does_not_conform_is_refused_by_structs_and_schema(change: dict[str, Any]) -> None:
    record = {**chain.seal(body(), 0, None), **change}
    with pytest.raises(msgspec.ValidationError):
        schema.decode(record)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record, schema.build())


def test_an_untouched_chain_verifies() -> None:
    assert chain.verify(chained(5)) == []


@pytest.mark.parametrize("index", range(4))
def test_a_changed_field_breaks_the_chain(index: int) -> None:
    records = chained(4)
    records[index]["duration_ms"] += 1
    assert any("altered" in problem for problem in chain.verify(records))


def test_a_change_with_its_hash_made_anew_breaks_the_next_link() -> None:
    records = chained(4)
    records[1]["duration_ms"] += 1
    records[1]["hash"] = chain.record_hash(records[1])
    assert any("prev_hash" in problem for problem in chain.verify(records))


def test_a_missing_and_a_swapped_record_break_the_chain() -> None:
    records = chained(4)
    assert chain.verify(records[:1] + records[2:])
    assert chain.verify([records[0], records[2], records[1], records[3]])


def test_the_published_examples_conform_as_the_excerpt_they_are(examples: dict[str, dict[str, Any]]) -> None:
    assert list(check((json.dumps(record) for record in examples.values()), excerpt=True)) == []
