"""The conformance rules of ATDP 1.0 and what a finding is."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One place where a file does not conform."""

    line: int
    """Counted from 1."""
    rule: str
    """A key of `RULES`."""
    message: str


RULES: dict[str, str] = {
    "json": "every line is one JSON object, UTF-8, without repeated keys",
    "schema": "every record conforms to the JSON Schema of ATDP 1.0",
    "time": "every time is RFC 3339 with a zone",
    "canonical": "every record has a canonical form (RFC 8785): no number that JSON can't hold exactly",
    "hash": "`hash` is the SHA-256 of the canonical form of the record without `hash`",
    "prev_hash": "`prev_hash` is the hash of the record before it in its trajectory; null at seq 0",
    "seq": "`seq` counts the chained records of a trajectory from 0 without a gap, in file order",
    "header": "record 0 of a trajectory is its `trajectory` record, and nothing else is",
    "context_id": "a context's id is the digest of its body",
    "context": "every context an event names is in the file",
    "id": "no two records of a file have one id (a context may be repeated as it is)",
    "reference": "what a record names (cause, parent, evidence, target, superseded annotation) is in the file, "
    "or listed in its `ext.external`",
    "order": "a record only names causes, prefixes and superseded annotations that come before it",
    "prefix": "`prefix` names an earlier `llm_call` of the same trajectory that has what is continued, and "
    "`{event}` one that holds a message",
    "shape": "an event has the fields of its kind's shape and none of another's",
    "annotation": "an annotation has what its kind needs: reward a value or label, preference a chosen or rejected "
    "side or a demonstration, governance a patch, replay_check a label, critique and label some words",
    "stand_in": "a stand-in is whole: {ref}, {sealed, commit} or {redacted}",
    "commitment": "the commitment of a sealed leaf is keyed or salted, not a plain hash",
    "sealed_tokens": "token ids are sealed (or absent) whenever any part of `o` or `a` is sealed or redacted, here or "
    "in the prefix",
    "tokens_count": "token ids, log-probabilities, run lengths and usage agree, or `ext.tokens_incomplete` is true",
}
"""Rule ids and what each asks."""

COMPLETENESS = frozenset({"seq", "prev_hash", "header", "context", "reference", "order", "prefix", "tokens_count"})
"""Rules that make no sense for an excerpt, which leaves records and numbers out on purpose."""
