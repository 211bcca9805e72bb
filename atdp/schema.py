"""The JSON Schema of a record, generated from the structs: `python -m atdp.schema` rewrites the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from atdp.records import Annotation, Context, Event, Record, Redacted, Ref, Sealed, Trajectory

SCHEMA_FILE = Path(__file__).with_name("atdp-1.0.schema.json")

_RECORD_NAMES = {"trajectory": Trajectory, "context": Context, "event": Event, "annotation": Annotation}

_STAND_INS = (Ref, Sealed, Redacted)
"""What a leaf may be besides a value; no record type names them, so they are listed here."""


def build() -> dict[str, Any]:
    """The schema as the structs have it now."""
    _, components = msgspec.json.schema_components([Record, *_STAND_INS], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:atdp:1.0",
        "title": "ATDP 1.0 record (one JSON object a line)",
        "oneOf": [{"$ref": f"#/$defs/{struct.__name__}"} for struct in _RECORD_NAMES.values()],
        "$defs": dict(sorted(components.items())),
    }


def render() -> str:
    """The text of the schema file."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def decode(record: dict[str, Any]) -> Record:
    """A stored record as its struct; raises `msgspec.ValidationError` naming what does not conform."""
    return msgspec.convert(record, Record)


if __name__ == "__main__":
    SCHEMA_FILE.write_text(render())
