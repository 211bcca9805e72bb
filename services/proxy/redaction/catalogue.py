"""What a policy may name: the entities that something here finds, and the countries whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterable

from registry.tenant_policy import TenantPolicy
from registry.tenants import RegistryError
from services.proxy.redaction import contacts, fields, national
from services.proxy.redaction.findings import SECRETS

COUNTRIES = frozenset(each.country for each in national.RECOGNISERS if each.country is not None)
ENTITIES = SECRETS | contacts.ENTITIES | fields.ENTITIES | national.ENTITIES


def check(policy: TenantPolicy) -> None:
    """Raises `RegistryError` that names what a policy asks for and nothing here knows, and lists what is known."""
    own = {dictionary.entity for dictionary in policy.dictionaries} | {rule.entity for rule in policy.fields}
    _check("actions", policy.actions, ENTITIES | own)
    _check("countries", policy.countries or (), COUNTRIES)


def _check(where: str, named: Iterable[str], known: frozenset[str]) -> None:
    strangers = [name for name in named if name not in known]
    if strangers:
        raise RegistryError(f"{where}: {', '.join(strangers)} not known; known are {', '.join(sorted(known))}")
