from __future__ import annotations

from pathlib import Path

import pytest

from registry import audit, control, tenant_policy, tenants
from registry.tenant_policy import DEFAULT, TenantPolicy
from registry.tenants import RegistryError
from services.router.watcher import ControlWatcher


def test_a_policy_is_read_from_toml_kept_audited_and_seen_by_the_gateway(tmp_path: Path) -> None:
    connection = control.connect(tmp_path / "control.sqlite")
    tenants.create_tenant(connection, "a")
    text = 'retention_days = 30\n[[fields]]\nfield = "customer.name"\n[budget]\ntokens_per_day = 5\n'
    tenant_policy.put(connection, "a", tenant_policy.parse(text), "test")
    assert tenant_policy.get(connection, "a").fields[0].field == "customer.name"
    assert tenant_policy.get(connection, "b") == DEFAULT
    assert audit.entries(connection, "a")[-1].detail["retention_days"] == 30
    watcher = ControlWatcher(tmp_path / "control.sqlite", "m", tmp_path / "keys")
    watcher._master = b"m" * 32
    watcher.refresh()
    assert watcher.picture.policies["a"].budget.tokens_per_day == 5
    assert set(watcher.picture.tenant_keys) == {"a"}


@pytest.mark.parametrize(
    "text",
    [
        "retention = 3",
        "retention_days = 0",
        'redaction = "none"',
        "[budget]\nrequests = 1",
        'a = "',
        '[[dictionaries]]\nname = "x"\n',
        '[[dictionaries]]\nname = "x"\npatterns = ["(a+)+"]',
        '[actions]\nEMAIL_ADDRESS = "hide"',
    ],
)
def test_what_is_no_policy_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(RegistryError):
        tenant_policy.parse(text)


def test_a_policy_for_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no tenant"):
        tenant_policy.put(control.connect(tmp_path / "control.sqlite"), "a", DEFAULT, "test")


def test_a_record_can_tell_the_level_from_a_tenants_own_policy() -> None:
    assert TenantPolicy(redaction="strict").name == "strict"
    assert TenantPolicy(retention_days=3).name == "standard+tenant"
