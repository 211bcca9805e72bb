"""Every command with where it is and what it says of itself: listed from here, imported only when it runs.

A rollback must not wait for the imports of statistics and stores that it never uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class Listed(NamedTuple):
    target: str
    """`module:attribute` within `evoplane.cli`; a function, or a Typer application for a group of commands."""
    help: str
    """The first paragraph of its own help."""


COMMANDS: dict[str, Listed] = {
    "up": Listed(
        "stack:up", "Start gateway, worker, Prefect, flows, MLflow, Evidently and the console, and keep them running."
    ),
    "down": Listed("stack:down", "Stop everything `up` started; nothing is left running."),
    "status": Listed("stack:status", "Show each component with its state and URL. Exit 1 unless all are healthy."),
    "doctor": Listed("stack:doctor", "Say what is wrong with this installation and what to do. Exit 1 on a problem."),
    "serve": Listed("stack:serve", "Run one role in the foreground."),
    "monitor": Listed("loop:monitor", "Look at an agent now instead of at the next scheduled time."),
    "diagnose": Listed(
        "loop:diagnose",
        "Why the agent fails: clusters of failures, how common each is, and the surface each suggests"
        " with its evidence.",
    ),
    "evolve": Listed("loop:evolve", "Start an evolution without waiting for an alert; all gates apply."),
    "deliver": Listed("delivery:deliver", "Start a delivery: shadow, canary, approval, promotion, watch."),
    "promote": Listed("delivery:promote", "Make an approved version the champion. Without an approval this refuses."),
    "rollback": Listed(
        "rollback:rollback", "Serve the previous version again, at once and without gates; ends canary and shadow."
    ),
    "snapshot": Listed(
        "learning:snapshot",
        "Freeze an agent's recorded work under a content hash (DVC) and ask the data gate about it"
        " (Great Expectations).",
    ),
    "train": Listed(
        "learning:train",
        "Train an adapter from an agent's snapshot. It is not served by that: versions pass the gates of `evolve`.",
    ),
    "replay": Listed("replay:replay", "Re-make the champion's recorded decisions under another version, and compare."),
    "feedback": Listed(
        "feedback:feedback", "Post feedback about an answer or a session. The key is read from EVOPLANE_KEY."
    ),
    "demo": Listed(
        "demo:demo", "Run the whole loop on the real stack and report what it did. Exit 1 if any bar was missed."
    ),
    "lineage": Listed(
        "lineage:lineage",
        "Why did the agent say this? From an event to the version, the intervention, the decision and the approver.",
    ),
    "impact": Listed(
        "lineage:impact", "Whom did a version answer? Sessions, tenants, events, and whether somebody corrected them."
    ),
    "backup": Listed(
        "backup:backup",
        "Copy the deployment while it runs: event logs, control database, blobs, snapshots, policies, MLflow, Prefect.",
    ),
    "restore": Listed(
        "backup:restore", "Put a backup where this configuration's deployment will be; refuses where one is."
    ),
    "stats": Listed(
        "watching:stats",
        "Show every statistic of an agent's recent work, with its interval and how many stand behind it.",
    ),
    "drift": Listed(
        "watching:drift_",
        "Compare the newer half of an agent's recent work with the older half, and show what the watch has found.",
    ),
    "version": Listed("main:version", "Print the version."),
    "tenant": Listed("governance:tenant_app", "Tenants: whose data is whose, and may it train."),
    "agent": Listed("identity:agent_app", "Agents: their model, approvers and versions."),
    "key": Listed("identity:key_app", "Keys: what a client sends instead of the provider's."),
    "grant": Listed("governance:grant_app", "Leave to open sealed content: who, what, why, until when."),
    "role": Listed("governance:role_app", "Roles of people, as policies ask for them."),
    "trajectories": Listed("trajectories:app", "Captured trajectories: list, read, verify, import, export."),
    "approvals": Listed("approvals:app", "Promotions that wait for a person."),
    "rewards": Listed("rewards:app", "Rewards by source, and how far the sources agree."),
    "mcp": Listed("mcp:app", "Tool servers (Model Context Protocol)."),
    "store": Listed("store:app", "The event log's database."),
    "atdp": Listed("atdp:app", "The record format: check files, list the rules."),
    "bench": Listed("bench:app", "Measure this machine's Evoplane."),
}


class Commands(TyperGroup):
    """The group of all commands; what its `commands` hold are only names and help until one is resolved."""

    def __init__(self, *, commands: Any = None, **told: Any) -> None:
        listed: dict[str, Any] = {name: TyperCommand(name, help=each.help) for name, each in COMMANDS.items()}
        super().__init__(commands=listed, **told)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a command; gives it as Typer's group has it."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    target: typer.Typer | Callable[..., None] = getattr(importlib.import_module(f"evoplane.cli.{module}"), attribute)
    holder = typer.Typer()
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name)
    else:
        holder.command(name)(target)
    return get_group(holder).commands[name]
