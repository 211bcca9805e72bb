"""The interface of a format, and what all of them share.

A format reads bytes into drafts and writes records as bytes. Both directions give a `LossReport`. What a
format has and ATDP has no field for is kept in `ext.<format>` of the nearest record, so that
reading and writing again loses nothing but what the report says.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import orjson

from atdp.canonical import canonical, digest_bytes
from atdp.convert.loss import LossReport
from atdp.records import AnnotationDraft, Draft, EventDraft, TrajectoryDraft
from atdp.standins import stand_ins

Source = bytes | Iterable[bytes]
"""A whole document, or its lines or chunks."""

Purpose = Literal["train", "evaluate", "replay", "debug"]

Record = dict[str, Any]
"""A draft or a stored record, as JSON."""

ContentOf = Callable[[str], bytes | None]
"""The bytes kept under a digest; None when there are none."""


TIME_ABSENT = "time_absent"
"""Header `ext`: the source has no times; those in the records are the import's."""


class ConversionError(ValueError):
    """The source is not of this format; the message says where and what was expected."""


class Content(NamedTuple):
    """Bytes a record names by digest, such as a tool's schema."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return digest_bytes(self.data)


class Late(NamedTuple):
    """An annotation about something another file has: the trajectory is for the store to find."""

    target_kind: str
    """`event`, `trajectory`, or `either` when the source does not say which."""
    target: str
    annotation: AnnotationDraft
    or_trajectory: str | None = None
    """With `either`: the trajectory, when no event has the target's id."""


Item = Draft | Content | Late


class Converted(NamedTuple):
    """Drafts, one trajectory after the other (its contexts and contents, its header, its chain)."""

    records: Iterator[Item]
    loss: LossReport


class Written(NamedTuple):
    data: bytes
    loss: LossReport


class ReadOptions(NamedTuple):
    """What the source does not say."""

    agent: str = "imported"
    """Whose trajectories they are."""
    imported_from: str = ""
    """Where they came from, such as a file's name."""
    time: str = "1970-01-01T00:00:00.000Z"
    """When, for what has no time of its own (RFC 3339)."""


class Format(ABC):
    """One foreign format. Stateless: one instance serves every call."""

    name: ClassVar[str]
    title: ClassVar[str]
    purpose: ClassVar[Purpose] = "debug"
    """What its files are for: only what is eligible for it leaves the store in this format."""
    carries: ClassVar[frozenset[str]] = frozenset()
    """Paths of a record that `write` carries over (`event.o.messages`); a path carries what is under it."""

    @abstractmethod
    def detect(self, document: Any) -> bool:
        """Is this (a whole JSON document, or the first line of JSON lines) of this format?"""

    @abstractmethod
    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        """The drafts of a source, lazily."""

    @abstractmethod
    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        """The pieces of the written document."""

    def has_annotation(self, annotation: Record) -> bool:
        """Has the format a place for this annotation?"""
        return False

    def read(self, source: Source, options: ReadOptions | None = None) -> Converted:
        """Drafts of a source in this format; nothing is read before the iterator is.

        Raises `ConversionError` (while iterating) when the source is not of this format. A trajectory that
        the source has twice is given once.
        """
        loss = LossReport(self.name, "read")
        return Converted(_once(_explained(self.items(source, options or ReadOptions(), loss), loss), loss), loss)

    def write(self, records: Iterable[Record], content: ContentOf = lambda digest: None) -> Written:
        """Records (drafts as JSON, or stored ones with their content loaded) in this format.

        Of each trajectory the header comes first; contexts may be anywhere before the events that name them.
        """
        loss = LossReport(self.name, "write")
        return Written(b"".join(self.stream(records, content, loss)), loss)

    def stream(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        """The same piece by piece; `loss` is complete when the pieces have been taken."""
        yield from self.lines(self._reported(records, loss), content, loss)

    def _reported(self, records: Iterable[Record], loss: LossReport) -> Iterator[Record]:
        """The records, what can't be carried counted as they pass."""
        timeless = False
        for record in records:
            if record["record"] == "trajectory":
                timeless = record.get("ext", {}).get(TIME_ABSENT) is True
            # times that were made up can't be lost
            told = without(record, "time") if timeless else record
            if record["record"] == "annotation" and not self.has_annotation(record):
                loss.lose(f"annotation.{record['kind']}", record["name"], "the format has no place for it")
            else:
                report_uncarried(told, self.carries, loss)
            for kind, stand_in, _ in stand_ins(record):
                loss.lose(f"content ({kind})", stand_in, "what stands for content is not the content")
            yield record


# -- reading


def whole(source: Source) -> bytes:
    """The source as one piece."""
    return source if isinstance(source, bytes) else b"".join(source)


def json_document(source: Source) -> Any:
    """The one JSON value of a source."""
    try:
        return orjson.loads(whole(source))
    except ValueError as error:
        raise ConversionError(f"not one JSON document: {error}") from error


def json_lines(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of JSON lines, as they come."""
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except ValueError as error:
            raise ConversionError(f"line {number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ConversionError(f"line {number} is not a JSON object")
        yield number, value


def json_documents(source: Source) -> Iterator[Any]:
    """The one JSON value of a source, or one value a line."""
    data = whole(source)
    try:
        yield orjson.loads(data)
    except ValueError:
        for _, value in json_lines(data):
            yield value


def _lines(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield from source.splitlines()
        return
    rest = b""
    for chunk in source:
        pieces = (rest + chunk).split(b"\n")
        rest = pieces.pop()
        yield from pieces
    if rest:
        yield rest


def parsed(text: Any) -> Any:
    """A JSON text's value; what is no JSON text stays as it is."""
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def source_key(value: Any) -> str:
    """A name for a piece of a source that depends on its content alone."""
    try:
        return digest_bytes(canonical(value))
    except ValueError:  # a number that RFC 8785 has no form for
        return digest_bytes(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def content_key(item: Any, options: ReadOptions) -> str:
    """The key of something without an id of its own: the same run of the same agent is the same trajectory."""
    return source_key([options.agent, item])


def without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The object without some keys, and without what says nothing (null)."""
    return {k: v for k, v in value.items() if k not in keys and v is not None}


def _explained(items: Iterator[Item], loss: LossReport) -> Iterator[Item]:
    """What goes wrong while reading, as what is wrong with the source."""
    try:
        yield from items
    except ConversionError:
        raise
    except RecursionError as error:
        raise ConversionError(f"item {loss.items + 1} is nested too deeply") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        at = f"item {loss.items + 1}"
        raise ConversionError(f"{at} is not of the format {loss.format}: {type(error).__name__} {error}") from error


def _once(items: Iterator[Item], loss: LossReport) -> Iterator[Item]:
    seen: set[str] = set()
    skipping = False
    for item in items:
        if isinstance(item, TrajectoryDraft):
            skipping = item.trajectory_id in seen
            if skipping:
                loss.note("duplicate", item.trajectory_id, "the source has this item twice; it is one trajectory")
            seen.add(item.trajectory_id)
        elif not isinstance(item, EventDraft | AnnotationDraft):
            skipping = False
        if not skipping:
            yield item


# -- writing


def report_uncarried(record: Record, carries: frozenset[str], loss: LossReport) -> None:
    """Count what a record has and the format can't say."""
    if record["record"] == "context":
        _uncarried("context", record["body"], carries, loss)
    else:
        _uncarried(record["record"], record, carries, loss)


_OWN = frozenset({"atdp", "record", "id", "trajectory_id", "ctx", "seq", "prev_hash", "hash"})
"""What makes a record a record of a chain; no other format has it, so it is not listed every time."""

_DEFAULTS = (("event.y.status", "ok"), ("trajectory.gov.eligibility.train", "pending"))
"""What a record has when nothing is said about it."""


def _uncarried(path: str, value: dict[str, Any], carries: frozenset[str], loss: LossReport) -> None:
    for key, item in value.items():
        here = f"{path}.{key}"
        if here in carries or (path.count(".") == 0 and key in _OWN) or (here, item) in _DEFAULTS:
            continue
        if isinstance(item, dict) and any(
            carried.startswith(here + ".") for carried in (*carries, *(path for path, _ in _DEFAULTS))
        ):
            _uncarried(here, item, carries, loss)
        else:
            loss.lose(here, item, "the format has no place for it")


def json_line(value: Any) -> bytes:
    """One line of JSON lines, in Python's common spacing so that texts inside compare as written."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def as_records(items: Iterable[Item]) -> Iterator[Record]:
    """Drafts as the JSON that writers take, contents left out."""
    for item in items:
        if isinstance(item, Late):
            yield msgspec.to_builtins(item.annotation)
        elif not isinstance(item, Content):
            yield msgspec.to_builtins(item)


def contents(items: Iterable[Item]) -> dict[str, bytes]:
    """The contents among items, by digest."""
    return {item.digest: item.data for item in items if isinstance(item, Content)}
