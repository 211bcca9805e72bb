"""Who may do what: Cedar policies, deny by default.

The policies that ship are `default.cedar`; files of a deployment (`policies/*.cedar`) take their place. A
decision takes a third of a millisecond and is remembered, and none is made on a request's path.
"""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import cedarpy

from registry import audit, roles
from registry.tenants import RegistryError

Action = Literal[
    "read_sealed", "grant", "approve", "promote", "rollback", "export", "cross_tenant_aggregate", "manage_keys"
]

_DEFAULT = Path(__file__).with_name("default.cedar")
_REMEMBERED = 4096


class Forbidden(RegistryError):
    """No policy permits it, or one forbids it."""


@dataclass(frozen=True)
class Principal:
    """Somebody, by name."""

    name: str
    roles: frozenset[str] = frozenset()
    tenant_roles: frozenset[str] = frozenset()
    """Roles for one tenant only, as `tenant/role`."""
    local: bool = False
    """Is it the account a command runs under, on the machine that holds the control database?"""


class Policies:
    """A set of Cedar policies."""

    def __init__(self, text: str) -> None:
        """Raises `RegistryError` when the text is no Cedar."""
        try:
            cedarpy.policies_to_json_str(text)
        except ValueError as error:
            raise RegistryError(f"the policies can't be read: {error}") from error
        self._text = text
        self._decided: OrderedDict[str, bool] = OrderedDict()

    @classmethod
    def load(cls, folder: Path | None = None) -> Policies:
        """The deployment's policies, if `folder` has any; else those that ship."""
        files = sorted(folder.glob("*.cedar")) if folder is not None and folder.is_dir() else []
        return cls("\n".join(file.read_text() for file in files or [_DEFAULT]))

    def allows(
        self,
        principal: Principal,
        action: Action,
        resource: str,
        attributes: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> bool:
        """Is it permitted? `resource` is `Agent::name` or `Tenant::id`; an error in a policy is a no."""
        question = _question(principal, action, resource, attributes or {}, context or {})
        known = self._decided.get(question)
        if known is None:
            asked = json.loads(question)
            result = cedarpy.is_authorized(asked["request"], self._text, asked["entities"])
            allowed = result.decision == cedarpy.Decision.Allow and not result.diagnostics.errors
            known = self._decided[question] = allowed
            if len(self._decided) > _REMEMBERED:
                self._decided.popitem(last=False)
        return known


@cache
def shipped() -> Policies:
    """The policies that ship."""
    return Policies.load()


def principal(connection: sqlite3.Connection, name: str, local: bool = False) -> Principal:
    """Somebody with the roles the control database gives them."""
    everywhere, per_tenant = roles.of(connection, name)
    return Principal(name, everywhere, per_tenant, local)


def require(
    connection: sqlite3.Connection,
    policies: Policies,
    who: Principal,
    action: Action,
    resource: str,
    attributes: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
) -> None:
    """Raises `Forbidden`, and writes the refusal to the audit log, when no policy permits it."""
    if not policies.allows(who, action, resource, attributes, context):
        audit.append(connection, who.name, f"denied.{action}", resource)
        raise Forbidden(f"{who.name!r} may not {action.replace('_', ' ')} {resource}: no policy permits it")


def _question(
    who: Principal, action: str, resource: str, attributes: Mapping[str, Any], context: Mapping[str, Any]
) -> str:
    kind, _, name = resource.partition("::")
    subject = {"type": "User", "id": who.name}
    entities = [
        {
            "uid": subject,
            "attrs": {
                "name": who.name,
                "roles": sorted(who.roles),
                "tenant_roles": sorted(who.tenant_roles),
                "local": who.local,
            },
            "parents": [],
        },
        {"uid": {"type": kind, "id": name}, "attrs": dict(attributes), "parents": []},
    ]
    request = {
        "principal": f"User::{json.dumps(who.name)}",
        "action": f"Action::{json.dumps(action)}",
        "resource": f"{kind}::{json.dumps(name)}",
        "context": dict(context),
    }
    return json.dumps({"request": request, "entities": entities}, sort_keys=True)
