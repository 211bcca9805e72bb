"""Do server and trainer mean the same policy? Captured log-probabilities against those of the starting weights.

If they differ, something between sampling and training is not what it seems, and every gradient is of
another policy than the one that acted. Training stops, and says which of the known causes the differences
look like:

- **tokenizer**: prompts, which servers tokenise from text, are not the ids this model's tokenizer gives;
- **template**: prompts do not end as this model's chat template begins an answer;
- **other ids**: most rows agree exactly, and some disagree from one token on: their ids are not those sampled;
- **truncated sampling**: captured values are nearly never lower: they are of what top-p, top-k or a grammar left;
- **temperature**: captured values are the computed ones, stretched;
- **precision**: small differences of both signs everywhere, as bf16 makes them;
- **other weights**: none of these; the server had another model or adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from services.worker.training.examples import Example
from services.worker.training.job import Job, JobError

_SAMPLE = 64
"""Rows looked at for a cause."""
_MOST = 0.5
_BF16_MEAN = 0.1
"""Nats: twice what bf16 at either end was seen to make (docs/learning.md)."""
_PERFECT = 0.999
"""Correlation of captured and computed values that only a change of scale leaves."""


def check(job: Job, examples: Sequence[Example], gaps: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Raise `JobError` when the mean absolute gap is above the job's tolerance, or there are NaNs.

    `gaps` are (row number, captured − computed of its comparable tokens), as `scoring.gaps` makes them.
    """
    flat = torch.cat([gap for _, gap in gaps]) if gaps else torch.empty(0)
    if not flat.numel():
        return
    mean, largest = flat.abs().mean().item(), flat.abs().max().item()
    if mean <= job.logprob_tolerance:
        return
    affected = sum(gap.numel() > 0 and gap.abs().mean().item() > job.logprob_tolerance for _, gap in gaps)
    raise JobError(
        f"server and trainer disagree about {affected} of {len(gaps)} rows: captured log-probabilities differ from "
        f"those of the starting weights by {mean:.3g} nats a token (mean), {largest:.3g} (max); "
        f"logprob_tolerance is {job.logprob_tolerance:g}. Likely cause: {cause(job, examples, gaps)}"
    )


def cause(job: Job, examples: Sequence[Example], gaps: Sequence[tuple[int, torch.Tensor]]) -> str:
    """The likeliest cause, and what to do about it."""
    rows = [examples[i] for i, _ in gaps[:_SAMPLE]]
    return _tokenizer_cause(job.base, rows) or _template_cause(job.base, rows) or _pattern_cause(job, examples, gaps)


def _tokenizer_cause(base: Path, rows: Sequence[Example]) -> str | None:
    if not (base / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))

    def foreign(ids: Sequence[int]) -> bool:
        text = tokenizer.decode(list(ids), skip_special_tokens=False)
        return tokenizer.encode(text, add_special_tokens=False).ids != list(ids)

    share = _share(rows, lambda row: foreign(row.prompt_token_ids))
    if share <= _MOST:
        return None
    return (
        f"tokenizer. {share:.0%} of the prompts are not the ids that {base / 'tokenizer.json'} gives for their text: "
        "the server, or whoever wrote these rows, has another tokenizer. Use captured ids, and serve with the "
        "tokenizer of the model that is trained"
    )


def _template_cause(base: Path, rows: Sequence[Example]) -> str | None:
    opening = _answer_opening(base)
    if not opening:
        return None
    share = _share(rows, lambda row: row.prompt_token_ids[-len(opening) :] != opening)
    if share <= _MOST:
        return None
    return (
        f"chat template. {share:.0%} of the prompts do not end as this model's template begins an answer "
        f"(token ids {opening}): they were rendered with another template, or without the generation prompt. "
        "Use captured prompt ids, and serve with the template of the model that is trained"
    )


def _answer_opening(base: Path) -> list[int] | None:
    """What the template adds to open the assistant's turn, as ids; None if there is no template."""
    template = base / "chat_template.jinja"
    if not (template.is_file() and (base / "tokenizer.json").is_file()):
        return None
    import jinja2
    from tokenizers import Tokenizer

    environment = jinja2.Environment(autoescape=False)  # noqa: S701  a prompt, not a page
    messages = [{"role": "user", "content": "x"}]
    try:
        rendered = environment.from_string(template.read_text())
        told = [rendered.render(messages=messages, tools=None, add_generation_prompt=g) for g in (False, True)]
    except jinja2.TemplateError:
        return None
    if not told[1].startswith(told[0]):
        return None
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    return list(tokenizer.encode(told[1][len(told[0]) :], add_special_tokens=False).ids)


def _pattern_cause(job: Job, examples: Sequence[Example], gaps: Sequence[tuple[int, torch.Tensor]]) -> str:
    spread = [gap for _, gap in gaps if gap.numel()]
    flat = torch.cat(spread)
    tolerance = job.logprob_tolerance
    wrong = [gap for gap in spread if gap.abs().mean() > tolerance]
    if len(wrong) <= _MOST * len(spread):
        late = sum(bool(gap[0].abs() <= tolerance) for gap in wrong)
        return (
            f"other ids. {len(spread) - len(wrong)} rows agree and {len(wrong)} do not ({late} of them agree up to "
            "some token): their ids are not the ids that were sampled, as when text is decoded and tokenised again. "
            "Use captured ids"
        )
    captured = torch.cat([_captured(examples[i], job) for i, gap in gaps if gap.numel()])
    computed = captured - flat
    if (flat > -tolerance).float().mean() > 0.99 and captured.numel() > 1:
        return (
            "truncated sampling. Captured values are never lower than computed ones: they are of the distribution that "
            "top-p, top-k or a grammar left. Sample with top_p = 1 and no top_k, and mark forced tokens"
        )
    if captured.numel() > 2 and torch.corrcoef(torch.stack([captured, computed]))[0, 1] > _PERFECT:
        return (
            f"temperature. Captured values follow computed ones exactly but on another scale: temperature is "
            f"{job.temperature:g} here; say the one that was sampled with, and serve with processed log-probabilities"
        )
    if flat.abs().mean() < _BF16_MEAN and flat.mean().abs() < 0.2 * flat.abs().mean():
        return (
            "precision. Small differences of both signs in most rows, as bf16 at one end makes them. Serve and train "
            "in one precision, or allow the difference with logprob_tolerance"
        )
    return (
        "other weights. Most rows disagree throughout: the server had another model or adapter than the one training "
        "starts from (base, initial_adapter), or policy_versions are wrong"
    )


def _captured(example: Example, job: Job) -> torch.Tensor:
    from services.worker.training.scoring import comparable

    assert example.logprobs is not None
    return torch.tensor(example.logprobs)[torch.tensor(comparable(example, job.policy_version), dtype=torch.bool)]


def _share(rows: Sequence[Example], holds: Callable[[Example], bool]) -> float:
    return sum(map(holds, rows)) / max(1, len(rows))
