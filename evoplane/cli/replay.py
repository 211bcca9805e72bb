"""`evoplane replay`: would another version have done better on what really happened?"""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.progress import Progress

from evoplane.cli.output import Json, err, print_json, show
from registry.tenants import RegistryError

Figure = dict[str, Any]


def replay(
    agent: Annotated[str, typer.Option(help="The agent.")],
    candidate: Annotated[str, typer.Option(help="The registered version to try.")],
    cases: Annotated[int, typer.Option(min=0, help="Recorded cases, at most; 0: the setting's.")] = 0,
    repeats: Annotated[int, typer.Option(min=0, help="Answers to each case; 0: the setting's.")] = 0,
    whole: Annotated[bool, typer.Option("--whole", help="Re-make whole conversations, not single decisions.")] = False,
    base_url: Annotated[str | None, typer.Option(help="Ask another model server than the worker's.")] = None,
    json: Json = False,
) -> None:
    """Re-make the champion's recorded decisions under another version, and compare.

    Nothing is written anywhere: tool calls are answered from the record or tried in a sandbox.

    Example: evoplane replay --agent support --candidate 3 --cases 96
    """
    told = [agent, candidate, f"--cases={cases}", f"--repeats={repeats}"]
    told += ["--whole"] if whole else []
    told += [f"--base-url={base_url}"] if base_url else []
    found = _run(told)
    if json:
        print_json(found)
        return
    show({
        "agent": f"{agent}: version {candidate} against champion {found['champion']}",
        "improvement": _interval(found["improvement"]),
        "failures fixed": _interval(found["fixed"]),
        "known successes lost": _interval(found["lost"]),
        **{f"tenant {t}": _interval(i) for t, i in found["by_tenant"].items()},
        "unknown": f"{found['unknown']} of {len(found['results'])} (neither success nor failure)",
        "unanswered": found["unanswered"],
        "violations, candidate less champion": _interval(found["safety"]["change"]),
        "replayed": ", ".join(f"{share:.0%} {name}" for name, share in found["klass"].items()),
    }, False)  # fmt: skip


def _run(told: list[str]) -> Figure:
    """Flows can't be imported here; the replay runs as a process that says how far it is."""
    command = [sys.executable, "-m", "flows.replaying", *told]
    last: dict[str, Any] = {}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        Progress(console=err.console) as progress,
    ):
        task = progress.add_task("replaying", total=None)
        for line in process.stdout or ():
            last = jsonlib.loads(line)
            if "done" in last:
                progress.update(task, completed=last["done"], total=last["of"])
    if "replay" not in last:
        raise RegistryError(last.get("error") or f"the replay ended with code {process.returncode}")
    return dict(last["replay"])


def _interval(found: Figure) -> str:
    if not found["n"]:
        return "not observed"
    return f"{found['value']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}] (n={found['n']})"
