"""Training rows: token ids exactly as the model saw and gave them, and what is known about them.

One JSON object a line. Only the two lists of ids are always needed; which of the others an algorithm
needs, it declares (`algorithms`). Lists named "a number a token" have as many entries as
`completion_token_ids`; spans are half-open and count completion tokens from 0.

    {"prompt_token_ids": [1, 9], "completion_token_ids": [5, 6, 2], "logprobs": [-0.1, -2.0, -0.3],
     "reward": 1.0, "group": "task-7", "policy_versions": [{"version": 3, "start": 0, "end": 3}]}

A row that is not of this form is an error with its line number, since training on the rest would hide a
broken exporter. A row of the right form that can't be used (nothing to learn, too long) is dropped and
counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from services.worker.training.job import JobError

Index = Annotated[int, msgspec.Meta(ge=0)]
TokenIds = list[Index]
Span = tuple[Index, Index]
"""(start, end) of completion tokens, end exclusive."""

_LOGPROB_ROUNDING = 1e-3
"""A log-probability may be this far above 0: servers round."""


class VersionSpan(msgspec.Struct, frozen=True):
    """Completion tokens that one version of the weights sampled, as vLLM's `weight_versions` says it."""

    version: Index
    """Counts weight updates of this policy: 0 is what it started from."""
    start: Index
    end: Index


class Step(msgspec.Struct, frozen=True):
    """The end of one step of reasoning or acting, and how good it was."""

    end: Annotated[int, msgspec.Meta(ge=1)]
    """Completion tokens up to here, the step's last one included."""
    reward: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of P tokens and a completion of C tokens, its end-of-turn token included."""

    prompt_token_ids: TokenIds
    completion_token_ids: TokenIds
    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """How much this row counts beside the others."""

    logprobs: list[float] | None = None
    """Behaviour log-probabilities, a number a token, nats: of the distribution really sampled from."""
    policy_versions: list[VersionSpan] | None = None
    """Which weights sampled which tokens; together they cover every token the policy chose."""
    observed: list[Span] = []
    """Tokens others wrote between the policy's own (tool results in merged turns): never trained on."""
    forced: list[Span] = []
    """Tokens a grammar left no choice about: imitated, but no policy gradient comes from them."""

    reward: float | None = None
    advantage: float | None = None
    """Instead of a reward: an advantage computed elsewhere, used as it is."""
    group: str | None = None
    """Rows of one group answer the same task; group algorithms compare them."""
    trajectory: str | None = None
    turn: Index | None = None
    """This row's turn in its trajectory; with `after`, how a reward is discounted back to earlier turns."""
    after: Index | None = None
    """The turn whose outcome led to this one; when absent, the turn before."""

    pair: str | None = None
    role: Literal["chosen", "rejected"] | None = None
    """Within the pair."""

    hint_prompt_token_ids: TokenIds | None = None
    """The prompt with a hint in it: the teacher is the policy itself, told so much."""
    teacher_logprobs: list[float] | None = None
    """A teacher's log-probabilities of this completion, a number a token."""
    steps: list[Step] | None = None
    """Process rewards, in order."""

    @property
    def length(self) -> int:
        return len(self.prompt_token_ids) + len(self.completion_token_ids)


def read_examples(path: Path, *, max_length: int, vocab_size: int) -> tuple[list[Example], dict[str, int]]:
    """The usable examples in file order, and how many were dropped for which reason.

    Raises `JobError` for a row that isn't an example at all.
    """
    kept: list[Example] = []
    dropped: Counter[str] = Counter()
    decoder = msgspec.json.Decoder(Example)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            example = decoder.decode(line)
            wrong = next(_contradictions(example, vocab_size), None)
        except (msgspec.DecodeError, RecursionError) as error:
            raise JobError(f"{path}, line {number}: {error}") from error
        if wrong:
            raise JobError(f"{path}, line {number}: {wrong}")
        if reason := _unusable(example, max_length):
            dropped[reason] += 1
        else:
            kept.append(example)
    return kept, dict(dropped)


def own_tokens(example: Example, *, forced: bool) -> list[bool]:
    """For each completion token whether it is the policy's own; forced ones count only if `forced`."""
    own = [True] * len(example.completion_token_ids)
    for start, end in [*example.observed, *([] if forced else example.forced)]:
        own[start:end] = [False] * (end - start)
    return own


def _contradictions(example: Example, vocab_size: int) -> Iterator[str]:
    """What contradicts itself in a well-formed row, in words."""
    count = len(example.completion_token_ids)
    largest = max(
        [*example.prompt_token_ids, *example.completion_token_ids, *(example.hint_prompt_token_ids or [])], default=0
    )
    if largest >= vocab_size:
        yield f"token id {largest} is outside the vocabulary of {vocab_size}"
    for name in ("logprobs", "teacher_logprobs"):
        numbers = getattr(example, name)
        if numbers is None:
            continue
        if len(numbers) != count:
            yield (
                f"{len(numbers)} {name} for {count} completion tokens: these are not the ids that were sampled "
                "(text that was tokenised again?)"
            )
        if any(number > _LOGPROB_ROUNDING for number in numbers):
            yield f"{name}: a log-probability above 0"
    for name in ("observed", "forced"):
        if any(not start < end <= count for start, end in getattr(example, name)):
            yield f"{name}: a span is empty or ends behind the last of {count} completion tokens"
    yield from _version_contradictions(example)
    ends = [step.end for step in example.steps or []]
    if ends != sorted(set(ends)) or (ends and ends[-1] > count):
        yield f"steps: ends must rise and not pass the last of {count} completion tokens"
    if (example.pair is None) != (example.role is None):
        yield "pair and role belong together"
    if (example.trajectory is None) != (example.turn is None):
        yield "trajectory and turn belong together"
    if example.after is not None and (example.turn is None or example.after >= example.turn):
        yield "after: a turn is led to by an earlier turn of its trajectory"
    if example.reward is not None and example.advantage is not None:
        yield "reward and advantage are alternatives"


def _version_contradictions(example: Example) -> Iterator[str]:
    spans = example.policy_versions
    if spans is None:
        return
    unknown = own_tokens(example, forced=True)
    for span in spans:
        if not span.start < span.end <= len(unknown):
            yield f"policy_versions: a span is empty or ends behind the last of {len(unknown)} completion tokens"
            return
        unknown[span.start : span.end] = [False] * (span.end - span.start)
    if any(unknown):
        yield f"policy_versions: nobody knows which weights sampled completion token {unknown.index(True)}"


def _unusable(example: Example, max_length: int) -> str | None:
    if not example.prompt_token_ids:
        return "empty prompt"
    if not example.completion_token_ids:
        return "empty completion"
    if (
        max(len(example.prompt_token_ids), len(example.hint_prompt_token_ids or [])) + len(example.completion_token_ids)
        > max_length
    ):
        return f"longer than {max_length} tokens"
    if example.weight == 0:
        return "weight 0"
    if not any(own_tokens(example, forced=True)):
        return "no token of the policy's own"
    return None


def groups(examples: Sequence[Example]) -> dict[str, list[int]]:
    """Indices of each group's rows, in order of first appearance; rows without a group are left out."""
    found: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        if example.group is not None:
            found.setdefault(example.group, []).append(index)
    return found
