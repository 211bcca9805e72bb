"""What judges answer, read strictly: whatever is not exactly the asked form is an abstention, never a guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec

Ruling = Literal["pass", "fail", "abstain"]
Preference = Literal["first", "second", "tie", "abstain"]


class _Rubric(msgspec.Struct, forbid_unknown_fields=True):
    verdict: Literal["pass", "fail"]
    reason: str
    violated: list[str] = []


class _Pairwise(msgspec.Struct, forbid_unknown_fields=True):
    better: Literal["A", "B", "tie"]
    reason: str


class Vote(msgspec.Struct, frozen=True):
    """One answer of a judge about one reply."""

    ruling: Ruling
    reason: str = ""
    violated: tuple[str, ...] = ()


class PairVote(msgspec.Struct, frozen=True):
    """Two answers of a judge about a pair, in both orders."""

    preference: Preference
    consistent: bool | None
    """Was it the same reply both times? None when one of the answers couldn't be read."""
    reason: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the votes on one reply come to."""

    ruling: Ruling
    votes: tuple[Vote, ...]
    agreement: float
    """Share of the readable votes that say the same as the ruling; 0 when it abstains."""
    confidence: float
    """Share of all votes that say so: those that couldn't be read count against it."""
    reason: str
    violated: tuple[str, ...]


class PairVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the votes on a pair come to."""

    preference: Preference
    votes: tuple[PairVote, ...]
    agreement: float
    confidence: float
    inconsistent: int
    """Votes that changed their mind when the order was swapped; each counts as a tie."""
    reason: str


def read_vote(text: str, principles: Collection[str]) -> Vote:
    """A rubric answer: one JSON object `{verdict, reason, violated}` and nothing else."""
    try:
        read = msgspec.json.decode(text.strip(), type=_Rubric)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeEncodeError):
        return Vote("abstain", "the answer is not of the asked form")
    if unknown := [id for id in read.violated if id not in principles]:
        return Vote("abstain", f"no principle {unknown[0]!r}")
    if read.verdict == "pass" and read.violated:
        return Vote("abstain", "passes, and names principles that were violated")
    return Vote(read.verdict, read.reason, tuple(read.violated))


def read_pair(straight: str, swapped: str) -> PairVote:
    """Two pairwise answers `{better, reason}`; in the second one the replies were in the other order."""
    answers = []
    for text in (straight, swapped):
        try:
            answers.append(msgspec.json.decode(text.strip(), type=_Pairwise))
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeEncodeError):
            return PairVote("abstain", None, "an answer is not of the asked form")
    one, other = answers
    back = {"A": "B", "B": "A", "tie": "tie"}[other.better]
    if one.better != back:
        return PairVote("tie", False, "another reply was better when their order was swapped")
    preference: Preference = {"A": "first", "B": "second", "tie": "tie"}[one.better]  # type: ignore[assignment]
    return PairVote(preference, True, one.reason)


def tally(votes: Sequence[Vote]) -> Verdict:
    """The majority of the readable votes; without one the verdict abstains."""
    counts = Counter(v.ruling for v in votes if v.ruling != "abstain")
    ruling: Ruling = _majority(counts) or "abstain"
    mine = [v for v in votes if v.ruling == ruling and ruling != "abstain"]
    return Verdict(
        ruling=ruling,
        votes=tuple(votes),
        agreement=len(mine) / counts.total() if counts else 0.0,
        confidence=len(mine) / len(votes) if votes else 0.0,
        reason=mine[0].reason if mine else (votes[0].reason if votes else ""),
        violated=tuple(sorted({id for v in mine for id in v.violated})),
    )


def tally_pairs(votes: Sequence[PairVote]) -> PairVerdict:
    """The majority of the readable votes; without one the pair is a tie, and without readable votes nothing."""
    counts = Counter(v.preference for v in votes if v.preference != "abstain")
    preference: Preference = _majority(counts) or ("tie" if counts else "abstain")
    mine = [v for v in votes if v.preference == preference and preference != "abstain"]
    return PairVerdict(
        preference=preference,
        votes=tuple(votes),
        agreement=len(mine) / counts.total() if counts else 0.0,
        confidence=len(mine) / len(votes) if votes else 0.0,
        inconsistent=sum(v.consistent is False for v in votes),
        reason=mine[0].reason if mine else "",
    )


def _majority(counts: Counter[Any]) -> Any:
    """What more than half say; None when nothing does."""
    if not counts:
        return None
    ((first, n),) = counts.most_common(1)
    return first if 2 * n > counts.total() else None
