"""An alert is answered once, however often it is raised, and none is lost."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry import alerts, control
from registry.alerts import Cause
from registry.tenants import RegistryError


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    return control.connect(tmp_path / "control.sqlite")


def cause(name: str) -> Cause:
    return Cause(name, f"{name} is bad", control.now(), "1")


def test_what_is_raised_while_one_is_open_joins_it(connection: sqlite3.Connection) -> None:
    first, new = alerts.raise_alert(connection, "support", cause("success"))
    second, also_new = alerts.raise_alert(connection, "support", cause("drop"))
    third, _ = alerts.raise_alert(connection, "support", cause("drop"))
    assert (new, also_new) == (True, False)
    assert first.id == second.id == third.id and [c.cause for c in third.causes] == ["success", "drop"]
    assert alerts.raise_alert(connection, "sales", cause("success"))[1]


def test_only_one_run_takes_it_and_the_same_run_again(connection: sqlite3.Connection) -> None:
    alert, _ = alerts.raise_alert(connection, "support", cause("success"))
    assert alerts.take(connection, alert.id, "run 1") is not None
    assert alerts.take(connection, alert.id, "run 2") is None
    assert alerts.take(connection, alert.id, "run 1") is not None
    assert alerts.end(connection, alert.id, "evolved").status == "done"
    assert alerts.take(connection, alert.id, "run 1") is None
    with pytest.raises(RegistryError, match="can't become open"):
        alerts.give_back(connection, alert.id)


def test_an_alert_whose_run_died_is_open_again_or_joins_the_newer(connection: sqlite3.Connection) -> None:
    alert, _ = alerts.raise_alert(connection, "support", cause("success"))
    alerts.take(connection, alert.id, "run 1")
    assert alerts.give_back(connection, alert.id).status == "open"
    alerts.take(connection, alert.id, "run 2")
    newer, _ = alerts.raise_alert(connection, "support", cause("drop"))
    joined = alerts.give_back(connection, alert.id)
    assert joined.id == newer.id and [c.cause for c in joined.causes] == ["success", "drop"]
    assert alerts.get(connection, alert.id).ended == f"joined {newer.id}"


def test_an_alert_that_is_taken_is_found_behind_any_number_of_newer_ones(connection: sqlite3.Connection) -> None:
    old, _ = alerts.raise_alert(connection, "support", cause("success"))
    alerts.take(connection, old.id, "a run that is gone")
    for n in range(60):
        newer, _ = alerts.raise_alert(connection, f"agent {n}", cause("drop"))
        alerts.take(connection, newer.id, "run")
        alerts.end(connection, newer.id, "evolved")
    assert [alert.id for alert in alerts.taken(connection)] == [old.id]


def test_many_at_once_are_one(tmp_path: Path) -> None:
    file = tmp_path / "control.sqlite"
    control.connect(file)

    def one(n: int) -> tuple[str, bool]:
        alert, new = alerts.raise_alert(control.connect(file), "support", cause(f"cause {n}"))
        return alert.id, new

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(24)))
    assert len({id for id, _ in found}) == 1 and sum(new for _, new in found) == 1
    held = alerts.open_alert(control.connect(file), "support")
    assert held is not None and len(held.causes) == 24
