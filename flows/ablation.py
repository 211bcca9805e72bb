"""Leave-one-out replay: how a decision fares without one of the parts it was made from.

`rerunner` gives what `evaluators.credit.leave_one_out` asks again and again, always under the same seeds,
so that what differs is the part.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evaluators.cases import Case
from evaluators.replay.judging import judge
from evaluators.replay.parts import Part, manifest_without, messages_without
from evoplane.settings import Settings
from flows.answering import answer_repeatedly
from registry.manifest import Manifest


def rerunner(
    config: Settings, manifest: Manifest, case: Case, repeats: int = 8
) -> Callable[[Part | None], list[float | None]]:
    """A function from the part that is left out (None: nothing) to the outcomes, 1 or 0, of the repeats.

    They are in the order of their seeds. None is what the tape can't judge.
    """

    def rerun(without: Part | None) -> list[float | None]:
        asked, told = case, manifest
        if without is not None:
            asked = msgspec.structs.replace(case, messages=messages_without(case.messages, without))
            told = manifest_without(manifest, without)
        answers = answer_repeatedly(config, told, [asked], repeats)[case.key]
        verdicts = [judge(case, answer) for answer in answers]
        return [None if v == "unknown" else float(v == "success") for v in verdicts]

    return rerun
