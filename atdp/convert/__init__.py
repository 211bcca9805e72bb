"""Between ATDP and the formats others use: a family, one file a format, one interface (`base.Format`).

    converted = convert.get("tau-bench").read(data)
    for item in converted.records: ...     # drafts, one trajectory after the other
    converted.loss                         # what the source has and ATDP does not hold, what was not believed

Pure: bytes in, drafts out, and back. Storing drafts is the data proxy's work (`services.proxy.importing`).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points

import orjson

from atdp.convert.adp import Adp
from atdp.convert.atif import Atif
from atdp.convert.base import Content, ConversionError, Converted, Format, Late, ReadOptions, Source, Written
from atdp.convert.gskill import GSkill
from atdp.convert.intercode import InterCode
from atdp.convert.judge import JudgeVerdicts
from atdp.convert.lines import AtdpLines
from atdp.convert.loss import LossReport
from atdp.convert.mlflow_traces import MlflowTraces
from atdp.convert.openai import OpenAIPreference, OpenAISft
from atdp.convert.otlp import OpenInference, Otlp
from atdp.convert.reflexion import Reflexion
from atdp.convert.rlds import Rlds
from atdp.convert.swe_agent import SweAgent
from atdp.convert.tau import Tau
from atdp.convert.tau2 import Tau2
from atdp.convert.tensorzero import TensorZero
from atdp.convert.trl import TrlGrpo, TrlPreference, TrlSft

__all__ = [
    "FORMATS",
    "Content",
    "ConversionError",
    "Converted",
    "Format",
    "Late",
    "LossReport",
    "ReadOptions",
    "Source",
    "Written",
    "detect",
    "formats",
    "get",
]

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        AtdpLines(), Atif(), Adp(), Otlp(), OpenInference(), MlflowTraces(), Tau(), Tau2(), JudgeVerdicts(), SweAgent(),
        OpenAISft(), OpenAIPreference(), TrlSft(), TrlPreference(), TrlGrpo(), Rlds(), InterCode(), Reflexion(),
        TensorZero(), GSkill(),
    )
}  # fmt: skip
"""The built-in formats by name, in the order in which content is compared with them."""

GROUP = "atdp.formats"
"""Entry points of this group name a `Format` that an installed package brings."""


def formats() -> dict[str, Format]:
    """Every format by its name: the built-in ones, then those of installed packages."""
    return {**FORMATS, **_installed()}


def get(name: str) -> Format:
    """The format of a name; raises `ConversionError` naming the known ones."""
    known = formats()
    if name not in known:
        raise ConversionError(f"no format {name!r}; known: {', '.join(known)}")
    return known[name]


def detect(lines: Iterable[bytes]) -> Format:
    """The format of a file's lines, by their content; raises `ConversionError` when it is none of those known.

    JSON lines are told by their first; only a document that spans lines is read whole.
    """
    read: list[bytes] = []
    for line in lines:
        read.append(line)
        if line.strip():
            break
    try:
        document = orjson.loads(b"".join(read))
    except ValueError:
        read.extend(lines)
        try:
            document = orjson.loads(b"".join(read))
        except ValueError as error:
            raise ConversionError(f"neither one JSON document nor JSON lines: {error}") from error
    known = formats()
    for format in known.values():
        if format.detect(document):
            return format
    raise ConversionError(f"the content is none of the formats known: {', '.join(known)}")


def _installed() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        kind = point.load()
        if not (isinstance(kind, type) and issubclass(kind, Format)) or kind.name != point.name:
            raise ConversionError(
                f"{point.value} is not a Format called {point.name!r}: take the package out or mend it"
            )
        found[point.name] = kind()
    return found
