"""Does a file conform to ATDP 1.0? Pure: takes lines, gives findings. `rules.RULES` says what is asked.

for finding in check(open("northwind.atdp.jsonl", "rb")):
    print(finding.line, finding.rule, finding.message)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from atdp.conformance.rules import COMPLETENESS, RULES, Finding
from atdp.conformance.single import problems
from atdp.conformance.whole import Whole

__all__ = ["RULES", "Finding", "check"]


def check(lines: Iterable[str | bytes], excerpt: bool = False) -> Iterator[Finding]:
    """Findings in the order of the lines; what is only clear at the end comes last.

    Memory grows with the number of records, not with their size. Of an `excerpt` (records quoted in a document)
    only what can be said of each record alone is asked; `rules.COMPLETENESS` names what is not.
    """
    whole = Whole()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            yield Finding(number, "json", str(error))
            continue
        found = _alone(record) if isinstance(record, dict) else [("json", "the line is no JSON object")]
        yield from (Finding(number, rule, m) for rule, m in found if not (excerpt and rule in COMPLETENESS))
        if not any(rule in ("json", "schema") for rule, _ in found):
            yield from (f for f in whole.add(number, record) if not (excerpt and f.rule in COMPLETENESS))
    if not excerpt:
        yield from whole.finish()


def _alone(record: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        return list(problems(record))
    except RecursionError:
        return [("json", "the record is nested too deeply to be checked")]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError(f"a key is repeated in {{{', '.join(key for key, _ in pairs)}}}")
    return value
