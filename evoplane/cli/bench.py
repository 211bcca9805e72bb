"""`evoplane bench`: measurements, run from the repository (`benchmarks/README.md` says how each is taken)."""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from evoplane.cli.output import Json, err, print_json, show
from evoplane.settings import settings

app = typer.Typer(no_args_is_help=True, help="Measure this machine's Evoplane.")


@app.command("gateway")
def gateway(
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test; its figures mean little.")] = False,
    peers: Annotated[bool, typer.Option(help="Measure MLflow's and Portkey's gateways too.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 when a bar is not met.")] = False,
    json: Json = False,
) -> None:
    """What the gateway adds to a call, its throughput and memory, beside the bare upstream and two peers.

    Example: evoplane bench gateway --json
    """
    from benchmarks.gateway.run import run  # only in the repository

    found = run(settings().var, quick=quick, peers=peers, say=lambda line: err.print(line, style="dim"))
    if json:
        print_json(found)
    else:
        show({name: value for name, value in found.items() if name != "bars"}, False)
        show(found["bars"], False)
    if check and not all(bar["met"] for bar in found["bars"]):
        raise typer.Exit(1)


@app.command("store")
def store(
    events: Annotated[int, typer.Option(help="Events of the memory measurement.")] = 1_000_000,
    json: Json = False,
) -> None:
    """Durable events a second against MLflow's traces and bare SQLite; size of a session; memory of an ingest.

    Example: evoplane bench store --json
    """
    from benchmarks.store import store as measure  # only in the repository, and heavy

    show(measure(events, lambda line: err.print(line, style="dim", highlight=False)), json)


@app.command("swap")
def swap(
    quick: Annotated[bool, typer.Option("--quick", help="40 requests instead of 200.")] = False,
    json: Json = False,
) -> None:
    """Weights changed 5 times under traffic: failed requests, wrongly recorded tokens, how long a change takes.

    Example: evoplane bench swap --json
    """
    from benchmarks.swap.run import run  # only in the repository, and heavy

    found = run(settings().var, quick=quick, say=lambda line: err.print(line, style="dim", highlight=False))
    show(found, json)
    if found["failed_requests"] or found["wrong_version_tokens"] or not found["damaged_adapter"]["refused"]:
        raise typer.Exit(1)


@app.command("delivery")
def delivery(
    quick: Annotated[bool, typer.Option("--quick", help="Two gateways, two rollbacks, four rollouts.")] = False,
    json: Json = False,
) -> None:
    """How fast a bad version is gone from 8 gateways under load, and what simulated canaries find out.

    Example: evoplane bench delivery --json
    """
    from benchmarks.delivery.run import run  # only in the repository

    found = run(settings().var, quick=quick, say=lambda line: err.print(line, style="dim", highlight=False))
    show(found, json)
    if found["failed_requests"]:
        raise typer.Exit(1)


@app.command("learn")
def learn(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 to N, each from the base model.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="A phase: lift, grpo-only, control, staleness, federated. May be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test; its figures mean nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier runs have measured.")] = False,
    json: Json = False,
) -> None:
    """An agent that knows a base URL and a key gets better from its own traffic: by how much, and why.

    Finished phases are kept in var/bench/learn; an interrupted run goes on with the next one.

    Example: evoplane bench learn --seeds 1 --only grpo-only --json
    """
    from benchmarks.learn.run import run  # only in the repository, and heavy

    say = lambda line: err.print(line, style="dim", highlight=False)  # noqa: E731
    try:
        found = run(settings().var, seeds=range(1, seeds + 1), only=only or [], quick=quick, fresh=fresh, say=say)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    show(found, json)


@app.command("replay")
def replay(
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test; its figures mean little.")] = False,
    real_policy: Annotated[bool, typer.Option(help="Try a real model on AgentDojo too.")] = True,
    json: Json = False,
) -> None:
    """Replay's throughput beside `vllm bench serve`, the coverage of its intervals, and whether live traffic agrees.

    Example: evoplane bench replay --json
    """
    from benchmarks.replay.run import run  # only in the repository, and heavy

    show(run(settings(), quick=quick, real_policy=real_policy, say=lambda line: err.print(line, style="dim")), json)


@app.command("agreement")
def agreement(json: Json = False) -> None:
    """Captured against trainer's log-probabilities, for float32 and bfloat16 at either end.

    Example: evoplane bench agreement --json
    """
    from benchmarks.agreement import run  # only in the repository, and heavy

    show(run(settings().var, say=lambda line: err.print(line, style="dim", highlight=False)), json)


@app.command("monitor")
def monitor(
    seeds: Annotated[int, typer.Option(min=1, help="Lives of every scenario.")] = 5,
    quiet_seeds: Annotated[int, typer.Option(min=0, help="Lives of those without a fault, if more.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One life of each; its figures mean little.")] = False,
    write: Annotated[Path | None, typer.Option(help="Put the confusion matrix into this page.")] = None,
    json: Json = False,
) -> None:
    """Does it choose the right surface, and leave well alone? Simulated lives with faults that nobody told it about.

    Also how soon a drop is seen, how often nothing is taken for something, and what watching costs.

    Example: evoplane bench monitor --seeds 5 --quiet-seeds 40 --write docs/control-plane.md
    """
    command = [sys.executable, "-m", "benchmarks.monitor", str(settings().var)]
    command += ["--seeds", str(seeds), "--quiet-seeds", str(quiet_seeds)]
    command += [*(["--quick"] if quick else []), *(["--write", str(write)] if write else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise typer.Exit(1)
    found = jsonlib.loads(done.stdout)
    if json:
        print_json(found)
    else:
        show({k: v for k, v in found.items() if k not in ("confusion", "misses", "methods")}, False)
        show([{"fault": name, **chosen} for name, chosen in found["confusion"].items()], False)


@app.command("train")
def train(
    quick: Annotated[bool, typer.Option("--quick", help="Tiny batches: a smoke test of the speed part.")] = False,
    json: Json = False,
) -> None:
    """Losses of every algorithm against independent implementations; speed and memory of a step beside TRL's.

    Example: evoplane bench train --json
    """
    from benchmarks.train.run import run  # only in the repository, and heavy

    found = run(settings().model_dir, quick=quick, say=lambda line: err.print(line, style="dim", highlight=False))
    if json:
        print_json(found)
    else:
        show({name: value for name, value in found.items() if name not in ("steps", "losses")}, False)
        show(found["steps"], False)
