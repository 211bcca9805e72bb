"""Whose data may be learned from together.

isolated    one tenant's adapter from its own data: the default
pooled      one set from several tenants, each of which has said so (`pooling` in its policy)
federated   each tenant's adapter from its own data, then their average (`services.worker.adapters`): no row of
            one is ever in the job of another; again only those that have said so (`federated`)
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from evoplane.settings import Settings
from registry import control, tenant_policy
from registry.tenants import RegistryError


class Learnable(msgspec.Struct, frozen=True):
    """Whose data may be learned from together."""

    tenants: tuple[str, ...]
    why: str = ""
    """Why it is nobody's, where it is."""


Tenancy = Literal["isolated", "pooled", "federated"]


def together(config: Settings, trajectories: Path) -> list[str]:
    """The tenants of a snapshot whose data may be in one set: all that agree to pooling, or the only one there is.

    Raises `RegistryError` when there are several and not two of them agree.
    """
    return pooled(config, sorted(file.stem for file in trajectories.glob("*.jsonl")))


def learnable(config: Settings, present: list[str]) -> Learnable:
    """Those of the tenants whose data one training set of theirs would hold, or why there would be none."""
    try:
        return Learnable(tuple(pooled(config, present)))
    except RegistryError as error:
        return Learnable((), str(error))


def pooled(config: Settings, present: list[str]) -> list[str]:
    """Those of the tenants whose data may be in one set; raises `RegistryError` as `together` does."""
    if len(present) < 2:
        return present
    agreed = _agreed(config, present, "pooled")
    if not agreed:
        raise RegistryError(
            f"the tenants {', '.join(present)} share this agent and none has agreed to pooling: train one tenant's "
            "adapter (`evoplane train --tenant`), or set `pooling = true` in their policies"
        )
    return agreed


def sets(config: Settings, trajectories: Path, tenancy: Tenancy, tenant: str | None = None) -> list[list[str]]:
    """The sets to make, each a list of tenants; raises `RegistryError` when a tenant has not agreed."""
    present = sorted(file.stem for file in trajectories.glob("*.jsonl"))
    if tenant is not None and tenant not in present:
        raise RegistryError(f"tenant {tenant!r} has nothing in this snapshot; there are: {', '.join(present)}")
    if tenancy == "isolated":
        if tenant is None and len(present) > 1:
            raise RegistryError(f"isolated training is one tenant's: name one of {', '.join(present)}")
        return [[tenant or present[0]]] if present else []
    agreed = _agreed(config, present, tenancy)
    if len(agreed) < 2:
        key = "pooling" if tenancy == "pooled" else "federated"
        raise RegistryError(f"{tenancy} training needs two tenants that agreed to it (`{key} = true` in their policy)")
    return [agreed] if tenancy == "pooled" else [[each] for each in agreed]


def _agreed(config: Settings, present: list[str], tenancy: Tenancy) -> list[str]:
    connection = control.connect(config.control_db)
    policies = {tenant: tenant_policy.get(connection, tenant) for tenant in present}
    return [t for t, policy in policies.items() if (policy.pooling if tenancy == "pooled" else policy.federated)]
