"""`evoplane rewards`: what signals say by source, how far sources agree, and what the rule makes of them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from dashboards.reading import read_cases, read_replies
from evaluators.cases import Case
from evaluators.credit import contribution_rows, contributions
from evaluators.judges.bias import judge_bias, judgements_of
from evaluators.rewards import RewardRule, resolve, rule_of
from evaluators.rewards.agreement import by_source, calibrate, pair_rows, source_rows
from evaluators.rewards.links import links
from evaluators.rewards.rule import keep_calibration
from evoplane.cli.output import Json, err, finite, out, print_json, show
from evoplane.settings import Settings, settings
from registry import control, tenants
from registry.tenants import RegistryError
from services.proxy.store import open_reader

app = typer.Typer(
    invoke_without_command=True, no_args_is_help=True, help="Rewards by source, and how far the sources agree."
)
Agent = Annotated[str, typer.Option(help="The agent.")]
Limit = Annotated[int, typer.Option(min=1, help="Newest trajectories of each tenant that are read.")]


@app.callback()
def rewards(
    context: typer.Context,
    agent: Annotated[str | None, typer.Option(help="The agent.")] = None,
    limit: Limit = 1000,
    json: Json = False,
) -> None:
    """Show reward by source, how far sources agree, and what the agent's rule makes of them.

    Example: evoplane rewards --agent support
    """
    if context.invoked_subcommand is not None:
        return
    if agent is None:
        raise RegistryError("say which agent: --agent")
    config = settings()
    rule, cases = _judged(config, agent, limit)
    found = by_source(cases)
    judged = [c for c in cases if c.reward is not None]
    if json:
        print_json(
            {
                "agent": agent,
                "rule": {"digest": rule.digest, **rule.described()},
                "decisions": len(cases),
                "judged": len(judged),
                **finite(msgspec.to_builtins(found)),
            }
        )
        return
    out.print(f"[bold]{agent}[/bold]  rule {rule.digest}  {len(judged)} of {len(cases)} decisions have a reward\n")
    show(source_rows(found), False)
    out.print()
    show(pair_rows(found), False)


@app.command("credit")
def credit(
    event: Annotated[str, typer.Argument(help="The event asked about (header x-evoplane-event-id).")],
    decay: Annotated[float, typer.Option(min=0, max=0.99, help="What an event passes on to what led to it.")] = 0.5,
    json: Json = False,
) -> None:
    """Show what led to an event: observations, prompt fragments, retrievals, tool calls, memory items, guardrails.

    Example: evoplane rewards credit ev_0197…
    """
    config = settings()
    reader = open_reader(config)
    place = reader.find_event(event)
    if place is None:
        raise RegistryError(f"no event {event!r}")
    stored = reader.records(*place)
    records = reader.resolve_all(place[0], stored)
    events = [r for r in records if r["record"] == "event"]
    if all(e["id"] != event for e in events):
        raise RegistryError(f"{event!r} is an annotation: name the event it is about")
    annotations = [r for r in records if r["record"] == "annotation"]
    known = links(r for r in stored if r["record"] == "event")
    found = contributions(events, event, annotations, decay=decay, known_links=known)
    agent = next((r["agent"]["name"] for r in records if r["record"] == "trajectory"), "")
    judged = resolve(annotations, rule_of(config, agent), events=events).of(event)
    if json:
        print_json({"event": event, "reward": msgspec.to_builtins(judged), "credit": msgspec.to_builtins(found)})
        return
    worth = "no reward yet" if judged is None else f"reward {judged.reward:.2f} by {judged.source}"
    out.print(f"[bold]{event}[/bold]  {worth}\n", highlight=False)
    show(contribution_rows(found), False)


@app.command("judges")
def judges(
    agent: Agent,
    limit: Limit = 1000,
    min_agreement: Annotated[float, typer.Option(min=0, max=1, help="Asked of the agreement's lower bound.")] = 0.7,
    json: Json = False,
) -> None:
    """Say of each judge whether it is worth believing: agreement, leniency, liking of length.

    Example: evoplane rewards judges --agent support
    """
    rule, cases = _judged(settings(), agent, limit)
    rows = []
    for key, judged in sorted(judgements_of(cases, rule.declared.reference).items()):
        report = judge_bias(judged, min_agreement=min_agreement)
        if json:
            rows.append({"judge": list(key), **finite(msgspec.to_builtins(report))})
        else:
            rows.append(
                {"judge": str(key), "state": report.state, "passes": str(report.passes),
                 "agreement": str(report.agreement), "leniency": str(report.leniency), "length": str(report.length),
                 "why": "; ".join(report.reasons)}
            )  # fmt: skip
    show(rows, json)


@app.command("calibrate")
def measure(agent: Agent, limit: Limit = 5000, json: Json = False) -> None:
    """Measure how far the sources that the rule wants calibrated agree with its reference, and keep it.

    What is kept becomes part of the agent's rule, and of its digest.

    Example: evoplane rewards calibrate --agent support
    """
    config = settings()
    rule, cases = _judged(config, agent, limit)
    measured = calibrate(cases, rule)
    keep_calibration(config, agent, measured)
    rows = [msgspec.to_builtins(each) for each in measured]
    show({"rule": rule_of(config, agent).digest, "calibrated": rows} if json else rows, json)


@app.command("learn-replies")
def learn_replies(
    agent: Agent,
    limit: Limit = 5000,
    precision: Annotated[float, typer.Option(min=0.5, max=1, help="How often what it says must be right.")] = 0.9,
    json: Json = False,
) -> None:
    """Train the classifier of users' replies on those whose answers somebody judged; `python -m flows.replies` uses it.

    Example: evoplane rewards learn-replies --agent support
    """
    from evaluators.next_state.classifier import use
    from evaluators.next_state.embedding import embed, embedding_name
    from evaluators.next_state.training import TooFewLabels, train

    config = settings()
    replies = [reply for mine in read_replies(config, agent, limit).values() for reply in mine]
    err.print(f"{len(replies)} replies, {sum(r.label is not None for r in replies)} labelled", style="dim")
    try:
        trained = train(replies, embed, embedding_name(), precision=precision)
    except TooFewLabels as error:
        raise RegistryError(f"not enough data: {error}") from error
    use(config.var / "next_state" / agent, trained)
    told = {"classifier": trained.digest, "confidence": trained.threshold, "labels": trained.report.labels}
    names = ("accuracy", "spoken_accuracy", "spoken", "calibration_error")
    measured = {name: getattr(trained.report, name) for name in names}
    if json:
        print_json(finite({**told, **{name: msgspec.to_builtins(value) for name, value in measured.items()}}))
    else:
        show({**told, **{name: str(value) for name, value in measured.items()}}, False)


def _judged(config: Settings, agent: str, limit: int) -> tuple[RewardRule, list[Case]]:
    """The agent's rule and what it was applied to; raises `RegistryError` for an agent nobody knows."""
    rule = rule_of(config, agent)
    cases = read_cases(config, agent, limit, rule)
    if not cases:
        tenants.get_agent(control.connect(config.control_db), agent)
    return rule, cases
