from __future__ import annotations

from datetime import UTC, datetime
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("retention_days = 3000000", "retention_days: 36500 is the longest"),
        ("retention_days = 1" + "0" * 30, "retention_days: 36500 is the longest"),
        ("[budget]\nrequests_per_minute = 1" + "0" * 20, "requests_per_minute: 9007199254740992 is the largest"),
        ("[key_budgets.k]\ntokens_per_day = 1" + "0" * 20, "tokens_per_day: 9007199254740992 is the largest"),
        ("a = " + "9" * 5000, "a number of too many digits"),
        ("a = " + "[" * 3000, "nested too deeply"),
        ('[[dictionaries]]\nname = "x"\npatterns = ["((a{1000}){1000}){1000}"]', "a repetition of repetitions"),
        (
            '[[dictionaries]]\nname = "x"\npatterns = ["' + "(" * 20 + "a" + "{1,9})" * 20 + '"]',
            "a repetition of repetitions",
        ),
        (f'[[dictionaries]]\nname = "x"\nterms = {[str(n) for n in range(30_000)]}', "20000 terms are the most"),
        ('[[dictionaries]]\nname = "x"\npatterns = ["(?R)"]', "dictionary x: it can't be compiled"),
        ('[[dictionaries]]\nname = "x"\npatterns = ["[a"]', "dictionary x: it can't be compiled: unterminated"),
    ],
)
def test_a_policy_that_no_gateway_could_live_with_is_refused_in_a_line(text: str, says: str) -> None:
    with pytest.raises(RegistryError) as refused:
        tenant_policy.parse(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("pattern", [r"(?:[a-z]{1,63}\.){1,127}[a-z]{2,63}", r"[(]{2}a{3}\(\)|b{,4}d|c{5,}", "x)|(y"])
def test_a_pattern_with_counted_repetitions_is_taken(pattern: str) -> None:
    tenant_policy.parse(f"[[dictionaries]]\nname = 'x'\npatterns = ['{pattern}']")


def test_a_retention_that_was_set_before_there_was_a_longest_lasts_to_the_end_of_time() -> None:
    opened = datetime(2026, 9, 2, tzinfo=UTC)
    assert TenantPolicy(retention_days=10**30).expires(opened) == datetime.max.replace(tzinfo=UTC)
    assert TenantPolicy(retention_days=1).expires(opened) == datetime(2026, 9, 3, tzinfo=UTC)
    assert TenantPolicy().expires(opened) is None


def test_a_policy_for_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no tenant"):
        tenant_policy.put(control.connect(tmp_path / "control.sqlite"), "a", DEFAULT, "test")


def test_a_record_can_tell_the_level_from_a_tenants_own_policy() -> None:
    assert TenantPolicy(redaction="strict").name == "strict"
    assert TenantPolicy(retention_days=3).name == "standard+tenant"
