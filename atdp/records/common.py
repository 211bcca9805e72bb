"""What every record is made of: the struct options, and the types of its leaves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

VERSION: Literal["1.0"] = "1.0"

Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Id = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0)]
Leaf = Annotated[
    Any,
    Meta(
        description="any JSON value, or a stand-in: {ref, bytes, media_type} for content stored apart, "
        "{sealed, commit, labels, bytes} for sealed content, {redacted, labels} for removed content"
    ),
]


class AtdpRecord(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False, tag_field="record"
):
    """Base of the four record types; an absent optional field is absent from the JSON too.

    Records hold data and never each other in a circle: the garbage collector need not follow them.
    """


class PartOfRecord(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False):
    """Base of everything nested inside a record."""
