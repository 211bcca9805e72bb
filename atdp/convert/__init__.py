"""Between ATDP and the formats others use: a family, one file a format, one interface (`base.Format`).

    converted = convert.get("tau-bench").read(data)
    for item in converted.records: ...     # drafts, one trajectory after the other
    converted.loss                         # what the source has and ATDP does not hold, what was not believed

Pure: bytes in, drafts out, and back. Storing drafts is the data proxy's work (`services.proxy.importing`).
"""

from __future__ import annotations

from collections.abc import Iterable

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
"""Every format by its name, in the order in which content is compared with them."""


def get(name: str) -> Format:
    """The format of a name; raises `ConversionError` naming the known ones."""
    if name not in FORMATS:
        raise ConversionError(f"no format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


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
    for format in FORMATS.values():
        if format.detect(document):
            return format
    raise ConversionError(f"the content is none of the formats known: {', '.join(FORMATS)}")
