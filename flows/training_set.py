"""The training set of a snapshot: the stage `dvc repro` runs (dvc.yaml).

    python -m flows.training_set        in a folder with `trajectories/` and `params.yaml`

Whatever the kind and whosoever's data, the tasks kept out are those of the whole snapshot's split: replay compares
candidates on exactly these, and a split of some tenants' cases alone would keep out others.

Prompts, and answers the model itself gave, are token ids as captured. A demonstrated answer was never sampled: it
is written the way the chat template writes an assistant's turn and encoded once; nothing else is tokenised.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from evaluators import corrections, dataset
from evaluators.cases import Case

MAX_EXAMPLES = 176
"""More examples than this are not needed to learn the format, and every one costs a CPU-second."""

_TEMPLATE = "chat_template.jinja"
"""The template the model is served with; it lies in the model's directory."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `training_set` of params.yaml."""

    python: str
    model_dir: str
    heldout_share: float
    limit: int
    kind: Literal["sft", "corrected", "hints", "rft", "groups", "preferences"] = "sft"
    """sft: what people demonstrated and what was resolved; corrected, hints: `corrected_sets`; others: `row_sets`."""
    tenants: list[str] | None = None
    versions: list[str] = []
    temperature: float = 1.0


class Writer:
    """Writes answers the way the served model would: chat template, then tokenizer."""

    def __init__(self, model_dir: Path):
        import jinja2
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        environment = jinja2.Environment(autoescape=False)  # noqa: S701 - a prompt, not a page
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string((model_dir / _TEMPLATE).read_text())

    def completion_ids(self, case: Case) -> list[int]:
        """Token ids of the taught answer with its end-of-turn token: as sampled, or as demonstrated."""
        if case.demonstration is None:
            return case.completion_token_ids
        prompt = self._template.render(messages=case.messages, tools=case.tools, add_generation_prompt=True)
        whole = self._template.render(
            messages=[*case.messages, case.demonstration], tools=case.tools, add_generation_prompt=False
        )
        if not whole.startswith(prompt):
            raise ValueError("the chat template does not continue its own generation prompt")
        return list(self._tokenizer.encode(whole[len(prompt) :].rstrip("\n"), add_special_tokens=False).ids)

    def hinted_ids(self, case: Case, hint: str) -> list[int] | None:
        """The captured prompt with a hint behind the user's last words; None where it does not end as the template
        ends a prompt after these."""
        if not case.request:  # a picture alone, say: there are no words for the hint to stand behind
            return None
        rendered = self._template.render(messages=case.messages, tools=case.tools, add_generation_prompt=True)
        _, said, end = rendered.rpartition(case.request)
        closing = list(self._tokenizer.encode(end, add_special_tokens=False).ids)
        if not said or not closing or case.prompt_token_ids[-len(closing) :] != closing:
            return None
        told = self._tokenizer.encode(f"\n\n(Hint: {hint})", add_special_tokens=False).ids
        return [*case.prompt_token_ids[: -len(closing)], *told, *closing]


def build(cases: Sequence[Case], split: dataset.Split, params: Params, output: Path) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` into `output`, which is there and empty; returns the report."""
    facts = corrections.established(cases)
    chosen = dataset.select(cases, split, facts, params.limit)
    writer = Writer(Path(params.model_dir))
    for name, rows in (("train", chosen.train), ("heldout", chosen.heldout)):
        with (output / f"{name}.jsonl").open("wb") as file:
            for case in rows:
                example = {
                    "prompt_token_ids": case.prompt_token_ids,
                    "completion_token_ids": writer.completion_ids(case),
                    "weight": 1.0,
                }
                file.write(msgspec.json.encode(example) + b"\n")
    report = {
        "train": len(chosen.train),
        "heldout": len(chosen.heldout),
        "dropped": chosen.dropped,
        "heldout_tasks": split.heldout_tasks(cases),
        "demonstrations": sorted(c.demonstration_id for c in chosen.train if c.demonstration_id),
        "own_successes": sorted(c.event_id for c in chosen.train if not c.demonstration_id),
        "tenants": sorted({c.tenant for c in chosen.train}),
        "eligibility": [
            {"tenant": c.tenant, "trajectory": c.trajectory_id, "train": "allow"}
            for c in (*chosen.train, *chosen.heldout)
        ],
    }
    return report


def main(arguments: Sequence[str] = ()) -> int:
    argparse.ArgumentParser(
        prog="python -m flows.training_set", description="Make the training set of the snapshot in this folder."
    ).parse_args(arguments)
    import yaml

    from flows import corrected_sets, row_sets, snapshot

    params = msgspec.convert(yaml.safe_load(Path("params.yaml").read_text())["training_set"], Params)
    folder, output = Path("trajectories"), Path("training-set")
    gate = json.loads(Path(snapshot.GATE).read_text())
    if not gate["passed"] or gate["snapshot"] != snapshot.directory_hash(folder):
        print(f"the data gate has not passed this snapshot: {gate['snapshot']}, {gate['summary']}", file=sys.stderr)
        return 1
    everybodys = snapshot.read(folder)
    split = dataset.split(everybodys, params.heldout_share)
    cases = [c for c in everybodys if params.tenants is None or c.tenant in params.tenants]
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    if params.kind == "sft":
        report = build(cases, split, params, output)
    elif params.kind == "corrected" or params.kind == "hints":
        writer = Writer(Path(params.model_dir))
        report = corrected_sets.build(cases, params.kind, split, params.limit, writer, output)
    else:
        wanted = row_sets.Wanted(
            kind=params.kind,
            tenants=params.tenants,
            versions=params.versions,
            temperature=params.temperature,
            limit=params.limit,
        )
        report = row_sets.build(snapshot.entries(folder), wanted, split, output)
    report["gate"] = gate
    (output / "report.json").write_text(json.dumps(report, indent=2, sort_keys=True))
    print(f"{report['train']} examples, {report['heldout']} held out, dropped: {report['dropped']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
