"""`evoplane stats`, `evoplane drift`: how an agent's recent work looks, and whether the work has changed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from dashboards.reading import read_cases
from evaluators import drift, watching
from evaluators.cases import Case
from evaluators.diagnosis.mix import Change, change
from evaluators.diagnosis.outcomes import outcomes_of
from evaluators.drift import Drift
from evaluators.rewards.agreement import by_source, pair_rows, source_rows
from evaluators.statistics import Statistics, summarise, table
from evaluators.watching import Seen
from evoplane.cli.output import Json, finite, out, print_json, show
from evoplane.settings import Price, Settings, settings
from registry import control, pointers, tenants
from services.proxy.store import open_reader

Agent = Annotated[str, typer.Option(help="The agent.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Window = Annotated[int | None, typer.Option(min=1, help="Newest trajectories of each tenant; the setting's otherwise.")]
Version = Annotated[str | None, typer.Option(help="Only this version's; otherwise the one that serves.")]


def stats(
    agent: Agent, tenant: Tenant = None, window: Window = None, version: Version = None, json: Json = False
) -> None:
    """Show every statistic of an agent's recent work, with its interval and how many stand behind it.

    Also what the triggers say, reward by source and how far the sources agree. Without a version that serves
    (imported trajectories), all of the agent's work is taken.

    Example: evoplane stats --agent support --tenant northwind --window 200
    """
    config = settings()
    seen, mine, everything = _cases(config, agent, tenant, window, version)
    found = _statistics(config, agent, mine, everything, window, seen)
    sources = by_source(mine)
    if json:
        print_json(
            finite(
                {
                    "agent": agent,
                    "tenant": tenant,
                    **msgspec.to_builtins(found),
                    "triggers": msgspec.to_builtins(seen),
                    "rewards": msgspec.to_builtins(sources),
                }
            )
        )
        return
    out.print(f"[bold]{agent}[/bold]: {found.state} ({escape(found.reason)})", highlight=False)
    if found.cost.why:
        out.print(f"cost per success is unknown: {found.cost.why}", style="dim", markup=False, highlight=False)
    show(table(found), False)
    for rows in (source_rows(sources), pair_rows(sources)):
        if rows:
            out.print()
            show(rows, False)


def drift_(
    agent: Agent,
    tenant: Tenant = None,
    window: Window = None,
    version: Version = None,
    against: Annotated[str | None, typer.Option(help="Compare with this agent's work instead of its own past.")] = None,
    json: Json = False,
) -> None:
    """Compare the newer half of an agent's recent work with the older half, and show what the watch has found.

    One look at one window; the watch over all looks is the monitor's, and its findings are shown beside.

    Example: evoplane drift --agent support
    """
    config = settings()
    seen, mine, _ = _cases(config, agent, tenant, window, version)
    if against is None:
        half = len(mine) // 2
        current, reference = mine[half:], mine[:half]
    else:
        current, reference = mine, _cases(config, against, tenant, window, None)[1]
    found, moved = compare(config, current, reference)
    if json:
        print_json(
            finite(
                {
                    "agent": agent,
                    **msgspec.to_builtins(found),
                    "sorts": found.sorts,
                    "success": msgspec.to_builtins(moved),
                    "watched": msgspec.to_builtins(seen.moved),
                }
            )
        )
        return
    counts = f"{found.current} trajectories against {found.reference}"
    out.print(f"[bold]{agent}[/bold]: {found.state}; {counts}", highlight=False)
    out.print(f"over all looks: {'; '.join(map(str, seen.moved)) or 'nothing drifted'}", highlight=False)
    if moved is not None:
        out.print(f"success {moved.within} on the same work, {moved.mix:+.2f} by other work", highlight=False)
    show(_rows(found), False)


drift_.__name__ = "drift"


def compare(config: Settings, current: list[Case], reference: list[Case]) -> tuple[Drift, Change | None]:
    """One look: columns through Evidently, texts by a classifier, success split by the mix of work."""
    text = drift.texts(current, reference, config.monitor)
    found, _ = drift.compare(drift.frame(current), drift.frame(reference), config.monitor, text)
    both = [[c for c in cases if c.success is not None] for cases in (current, reference)]
    moved = change(outcomes_of(both[0]), outcomes_of(both[1]), config.monitor.alpha) if all(both) else None
    return found, moved


def _cases(
    config: Settings, agent: str, tenant: str | None, window: int | None, version: str | None
) -> tuple[Seen, list[Case], list[Case]]:
    """(what the triggers say, the asked version's decisions, all of the agent's); refuses an agent nobody knows."""
    everything = read_cases(config, agent, window or config.monitor.window)
    routes = pointers.all_routes(control.connect(config.control_db))
    if not everything:
        tenants.get_agent(control.connect(config.control_db), agent)
    serving = version or (routes[agent].champion if agent in routes else None)
    mine = [c for c in everything if c.role != "canary" and (serving is None or c.agent_version == serving)]
    if tenant is not None:
        mine = [c for c in mine if c.tenant == tenant]
    return watching.seen(watching.remembered(config.var, agent), config.monitor), mine, everything


def _statistics(
    config: Settings, agent: str, mine: list[Case], everything: list[Case], window: int | None, seen: Seen
) -> Statistics:
    versions = pointers.versions(control.connect(config.control_db), agent)
    prices = {v: config.prices.get(bundle.manifest.policy.served_name) for v, bundle in versions.items()}
    reader = open_reader(config)
    limit = window or config.monitor.window

    def price_of(case: Case) -> Price | None:
        return prices.get(case.agent_version)

    watched = watching.remembered(config.var, agent).watch.agent.level.n > 0
    return summarise(
        mine,
        target=config.monitor.target_success,
        min_outcomes=config.monitor.min_outcomes,
        alpha=config.monitor.alpha,
        price_of=price_of,
        ended={
            (t, r.trajectory_id): r.closed for t in reader.tenants() for r in reader.trajectories(t, agent, limit=limit)
        },
        canary=[c for c in everything if c.role == "canary"],
        alarms=([seen.cause[1]] if seen.cause else []) if watched else None,
    )


def _rows(found: Drift) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "column": column,
            "about": drift.sort_of(column),
            "p": p,
            "effect": str(found.effects[column]),
            "matters from": found.effects[column].least,
            "drift": "yes" if column in found.drifted else "no",
        }
        for column, p in found.columns.items()
    ]
    if found.text is not None and found.text.auc.n:
        rows.append(
            {
                "column": "text",
                "about": "workload",
                "p": found.text.p,
                "effect": f"AUC {found.text.auc}",
                "matters from": "",
                "drift": "yes" if found.text.state == "drift" else "no",
            }
        )
    return rows
