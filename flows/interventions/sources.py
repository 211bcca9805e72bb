"""How many independent people say the same, and which of their sessions a change is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evaluators.cases import Case, Key
from evaluators.skills.procedures import subject_of
from evaluators.skills.when import common_words, distinctive

_SHARES = (1 / 3, 1 / 2, 2 / 3)


def sessions_of(cases: Iterable[Case]) -> list[Key]:
    """Distinct sessions in the order of their first case."""
    return list(dict.fromkeys(case.session for case in cases))


def made_from(sessions: Sequence[Key], least: int) -> tuple[Key, ...]:
    """The sessions a change is made from: a third of them, `least` at any rate. The others are left for replay."""
    return tuple(sessions[: max(least, len(sessions) // 3)])


def independent(cases: Sequence[Case], least: int) -> bool:
    """Do enough sessions say it, and not all of them for one and the same end user?"""
    subjects = {subject_of(case) for case in cases}
    return len(sessions_of(cases)) >= least and (None in subjects or len(subjects) > 1)


def everywhere(cases: Sequence[Case], among: Sequence[Case]) -> bool:
    """May it be told to every tenant? Where several are served, one tenant's word is not enough."""
    return len({c.tenant for c in cases}) > 1 or len({c.tenant for c in among}) == 1


def told_apart(
    cases: Sequence[Case], others: Sequence[str], least: int, among: Sequence[Case]
) -> tuple[tuple[str, ...], tuple[Key, ...]]:
    """The words that tell the requests of these cases from others, and the sessions they were read off.

    Where `among`, all the work there is, is that of several tenants, only words that more than one of them says.

    A third of the sessions if that will do; up to two thirds where people put it in many ways. Without any words, the
    sessions a change is made from anyhow.
    """
    sessions = sessions_of(cases)
    common = common_words((case.tenant, case.request) for case in among)
    for share in _SHARES:
        sources = tuple(sessions[: max(least, int(share * len(sessions)))])
        sample = [case.request for case in cases if case.session in sources]
        about = distinctive(sample, others, len(cases) / len(sample), common) if sample else ()
        if about:
            return about, sources
    return (), made_from(sessions, least)
