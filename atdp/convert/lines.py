"""ATDP itself, JSON lines: records as another deployment exported them.

A record gets a new place in a chain when it is stored, so `seq`, `prev_hash` and `hash` are checked and dropped.
Content that records name by digest does not travel in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from atdp import chain
from atdp.canonical import digest
from atdp.convert.base import (
    ContentOf,
    ConversionError,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    json_lines,
    without,
)
from atdp.convert.loss import LossReport
from atdp.records import AnnotationDraft, Context, Draft, EventDraft, TrajectoryDraft

_DRAFTS: dict[str, type[Draft]] = {
    "trajectory": TrajectoryDraft,
    "context": Context,
    "event": EventDraft,
    "annotation": AnnotationDraft,
}
_PLACE = ("seq", "prev_hash", "hash")


class AtdpLines(Format):
    """Records as they are stored, or drafts."""

    name = "atdp"
    title = "ATDP 1.0 records (JSON lines)"

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"atdp", "record"} <= document.keys()

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        heads: dict[str, str | None] = {}
        for number, record in json_lines(source):
            kind = _DRAFTS.get(str(record.get("record")))
            if kind is None:
                raise ConversionError(f"line {number}: {record.get('record')!r} is no record type of ATDP 1.0")
            self._check(record, heads, loss)
            try:
                yield msgspec.convert(_draft(record, options, loss), kind)
            except msgspec.ValidationError as error:
                raise ConversionError(f"line {number}: {error}") from error

    @staticmethod
    def _check(record: Record, heads: dict[str, str | None], loss: LossReport) -> None:
        if record["record"] == "trajectory":
            loss.items += 1
        if record["record"] == "context":
            if digest(record["body"]) != record["id"]:
                loss.note("altered", record["id"], "the context's id is not the digest of its body")
        elif "hash" in record:
            trajectory = record["trajectory_id"]
            if chain.record_hash(record) != record["hash"]:
                loss.note("altered", record.get("id") or trajectory, "the record's hash is not that of its content")
            elif record["prev_hash"] != heads.get(trajectory):
                loss.note(
                    "gap", record.get("id") or trajectory, "the record before it in its trajectory is not in the file"
                )
            heads[trajectory] = record["hash"]

    def stream(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        """Nothing is lost that a record has; content kept apart is counted, for it does not travel along."""
        yield from self.lines(records, content, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for record in records:
            loss.items += record["record"] == "trajectory"
            for ref in _references(record):
                loss.lose("content", ref, "content kept apart under its digest is not in the file")
            yield msgspec.json.encode(record) + b"\n"


def _draft(record: Record, options: ReadOptions, loss: LossReport) -> Record:
    draft = without_place(record)
    if record["record"] == "trajectory" and options.imported_from:
        draft["origin"] = {**record.get("origin", {}), "imported_from": options.imported_from}
    for ref in _references(record):
        loss.lose("content", ref, "content kept apart under its digest is not in the file")
    return draft


def without_place(record: Record) -> Record:
    """The record without its place in a chain."""
    return {key: value for key, value in record.items() if key not in _PLACE}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "ref" in value and value.keys() <= {"ref", "bytes", "media_type"}:
            yield str(value["ref"])
        else:
            for item in without(value).values():
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
