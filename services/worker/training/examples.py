"""Training examples: token ids exactly as the model saw and should have answered them.

A row that is not of the stated form is an error with its line number, since training on the rest
would hide a broken exporter. A row of the right form that can't be used (nothing to learn, too long)
is dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec

from services.worker.training.job import JobError

TokenIds = list[Annotated[int, msgspec.Meta(ge=0)]]


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of P tokens and the completion of C tokens to learn, its end-of-turn token included."""

    prompt_token_ids: TokenIds
    completion_token_ids: TokenIds
    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0


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
        except msgspec.DecodeError as error:
            raise JobError(f"{path}, line {number}: {error}") from error
        ids = example.prompt_token_ids + example.completion_token_ids
        if ids and max(ids) >= vocab_size:
            raise JobError(f"{path}, line {number}: token id {max(ids)} is outside the vocabulary of {vocab_size}")
        if reason := _unusable(example, max_length):
            dropped[reason] += 1
        else:
            kept.append(example)
    return kept, dict(dropped)


def _unusable(example: Example, max_length: int) -> str | None:
    if not example.prompt_token_ids:
        return "empty prompt"
    if not example.completion_token_ids:
        return "empty completion"
    if len(example.prompt_token_ids) + len(example.completion_token_ids) > max_length:
        return f"longer than {max_length} tokens"
    if example.weight == 0:
        return "weight 0"
    return None
