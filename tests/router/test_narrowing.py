"""A schema that was patched accepts nothing that the client's schema does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from services.router.overlays import NotNarrower, narrowed

_TEXT = st.text("ab1", max_size=4)
_VALUES = st.one_of(_TEXT, st.integers(-3, 9), st.booleans(), st.none(), st.lists(_TEXT, max_size=3), st.just(1.0))
_KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["string", "integer", "number", "boolean", ["string", "null"], "array"]),
    "enum": st.lists(_VALUES, min_size=1, max_size=4),
    "const": _VALUES,
    "minimum": st.integers(-2, 8),
    "maximum": st.integers(-2, 8),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "minItems": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "multipleOf": st.integers(1, 4),
    "uniqueItems": st.booleans(),
    "pattern": st.sampled_from(["^a", "b$", "^[ab]*$"]),
    "items": st.fixed_dictionaries({}, optional={"pattern": st.just("^a"), "maxLength": st.integers(0, 3)}),
    "description": _TEXT,
    "examples": st.lists(_VALUES, max_size=2),
}
_SCHEMAS = st.fixed_dictionaries({}, optional=_KEYWORDS)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_SCHEMAS, _SCHEMAS, st.lists(_VALUES, min_size=1, max_size=12))
def test_what_a_patched_schema_accepts_the_clients_accepts(
    schema: dict[str, Any], patch: dict[str, Any], values: list[Any]
) -> None:
    try:
        result = narrowed(schema, patch)
    except NotNarrower:
        assume(False)
    before, after = Draft202012Validator(schema), Draft202012Validator(result)
    for value in [*values, *result.get("enum", ()), result.get("const")]:
        assert not after.is_valid(value) or before.is_valid(value)


@pytest.mark.parametrize(
    ("schema", "patch"),
    [
        ({"type": "string"}, {"enum": ["a", "b"], "description": "x", "examples": ["a"]}),
        ({"enum": ["a", "b", "c"]}, {"enum": ["b"]}),
        ({"type": "number", "maximum": 9}, {"type": "integer", "maximum": 5, "minimum": 1}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"properties": {"a": {"pattern": "^x"}}}),
        (True, {"type": "string"}),
    ],
)
def test_a_narrower_patch_is_merged(schema: Any, patch: dict[str, Any]) -> None:
    result = narrowed(schema, patch)
    assert {k: v for k, v in result.items() if k != "properties"}.items() >= {
        k: v for k, v in patch.items() if k != "properties"
    }.items()


@pytest.mark.parametrize(
    ("schema", "patch", "why"),
    [
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, "refuses"),
        ({"enum": [1]}, {"enum": [True]}, "refuses"),
        ({"type": "string"}, {"enum": [5]}, "refuses"),
        ({"type": "string"}, {"enum": []}, "no value"),
        ({"type": "integer"}, {"type": "number"}, "type is integer"),
        ({"maximum": 5}, {"maximum": 9}, "wider"),
        ({"pattern": "^a"}, {"pattern": "^b"}, "another 'pattern'"),
        ({}, {"pattern": "("}, "not a regular expression"),
        ({}, {"anyOf": []}, "not among the keywords"),
        ({"type": "object", "properties": {}}, {"properties": {"a": {}}}, "no property"),
        ({"required": ["a", "b"]}, {"required": ["a"]}, "requires more"),
        (False, {"type": "string"}, "not an object"),
    ],
)
def test_a_wider_patch_is_refused_with_the_reason(schema: Any, patch: dict[str, Any], why: str) -> None:
    with pytest.raises(NotNarrower, match=why):
        narrowed(schema, patch)


def test_a_schema_the_provider_compiles_gets_only_what_that_understands() -> None:
    assert narrowed({"type": "string"}, {"description": "x"}, strict=True)["description"] == "x"
    with pytest.raises(NotNarrower, match="strict"):
        narrowed({"type": "string"}, {"pattern": "^a"}, strict=True)


@pytest.mark.parametrize(
    ("schema", "patch"),
    [
        ({"minLength": "x"}, {"enum": ["a"]}),
        ({"type": [{}]}, {"type": "string"}),
        ({"multipleOf": 0}, {"multipleOf": 3}),
        ({"required": 5}, {"required": ["x"]}),
        ({"minimum": "a"}, {"const": 5}),
        ({"type": "integer"}, {"enum": [10**400]}),
    ],
)
def test_a_schema_that_makes_no_sense_is_left_alone(schema: Any, patch: dict[str, Any]) -> None:
    with pytest.raises(NotNarrower):
        narrowed(schema, patch)


@pytest.mark.parametrize("pattern", ["(a+)+$", r"(\w|_)*!", r"\w*\w*\w*\w*\w*\w*!", "a" * 300])
def test_a_clients_pattern_that_could_hold_everybody_up_is_not_tried(pattern: str) -> None:
    with pytest.raises(NotNarrower, match="too long to try"):
        narrowed({"type": "string", "pattern": pattern}, {"enum": ["a" * 60 + "?"]})
