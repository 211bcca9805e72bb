"""Finding what an id names, among what somebody may see: anything else does not exist for them."""

from __future__ import annotations

from typing import NamedTuple

from dashboards.console.access import Viewer
from services.proxy.reader import StoreReader, TrajectoryRow


class Place(NamedTuple):
    """Where an id leads: the trajectory, or a record of it."""

    tenant: str
    trajectory_id: str
    record_id: str | None


def trajectory(reader: StoreReader, who: Viewer, tenant: str, trajectory_id: str) -> TrajectoryRow | None:
    """A trajectory of this tenant; None when there is none, or it is not for `who`."""
    row = reader.trajectory(tenant, trajectory_id) if tenant in who.tenants else None
    return row if row is not None and row.agent in who.agents else None


def place(reader: StoreReader, who: Viewer, id: str) -> Place | None:
    """Where the id of a trajectory, event or annotation leads; None when nothing that `who` may see has it."""
    for tenant in sorted(who.tenants):
        if trajectory(reader, who, tenant, id) is not None:
            return Place(tenant, id, None)
        record = reader.record(tenant, id)
        if record is not None and trajectory(reader, who, tenant, record["trajectory_id"]) is not None:
            return Place(tenant, record["trajectory_id"], id)
    return None


def in_session(reader: StoreReader, who: Viewer, session_id: str) -> list[TrajectoryRow]:
    """The trajectories of a session that `who` may see."""
    places = [(tenant, agent) for tenant in sorted(who.tenants) for agent in sorted(who.agents)]
    return [row for tenant, agent in places for row in reader.in_session(tenant, agent, session_id)]
