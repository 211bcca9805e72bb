"""What commands print on a terminal of 80 columns: everything, and ids that can be copied."""

from __future__ import annotations

import pytest

from evoplane.cli import following, lineage, output
from registry.pointers import Route

TRAJECTORY = "tr_01970000-1111-7222-8333-abcdef012345"
SESSION = "se_01970000-1111-7222-8333-abcdef012345"
EVENT = "ev_01970000-1111-7222-8333-abcdef012345"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(output.out, "console", output.Printer().console)


def test_ids_in_a_table_stay_whole_and_no_column_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "tenant": "northwind", "trajectory_id": TRAJECTORY, "session_id": SESSION,
        "last_at": "2026-11-30T10:00:00.000Z",
        "why": f"the model server said in {EVENT} that it was busy, and so it was for a long while", "events": 4,
    }  # fmt: skip
    output.show([row], False)
    said = capsys.readouterr().out
    for id in (TRAJECTORY, SESSION, EVENT):
        assert id in said
    words = said.split()
    assert "northwind" in words and "events" in words and "4" in words and "while" in words


def test_a_table_without_ids_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([{"name": "n" * 50, "why": "word " * 40, "n": 3}], False)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80 and said.count("word") == 40 and said.count("n" * 10) >= 4


def test_a_column_of_single_words_is_folded_after_one_of_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:8400"
    detail = "ended with status -9, see var/logs/gateway.log " * 2
    row = {"name": "gateway", "url": url, "restarts": 0, "detail": detail}
    output.show([row], False)
    said = capsys.readouterr().out
    assert url in said and max(map(len, said.splitlines())) <= 80


def test_a_time_in_a_table_is_told_to_the_second_and_folds_before_the_hour(capsys: pytest.CaptureFixture[str]) -> None:
    times = dict.fromkeys(("opened_at", "last_at"), "2026-11-30T17:19:09.118Z")
    output.show([{"trajectory_id": TRAJECTORY, "session_id": SESSION, **times}], False)
    said = capsys.readouterr().out.split()
    assert said.count("2026-11-30") == 2 and said.count("17:19:09") == 2
    output.show([times], True)
    assert "2026-11-30T17:19:09.118Z" in capsys.readouterr().out


def test_square_brackets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([{"why": "not in [prices]"}], False)
    output.show({"why": "not in [prices]"}, False)
    assert capsys.readouterr().out.count("[prices]") == 2


def test_a_lineage_is_wrapped_not_cut_however_deep(capsys: pytest.CaptureFixture[str]) -> None:
    chain = [
        {"version": str(n), "intervention": "memory", "description": " ".join(f"word{n}.{i}" for i in range(30)),
         "evidence": {"source": EVENT, "note": "[prices] " * 20}, "approval": None, "served_from": []}
        for n in range(12)
    ]  # fmt: skip
    lineage._tree("support", chain)
    said = capsys.readouterr().out
    assert all(f"word{n}.{i}" in said for n in range(12) for i in range(30))
    assert said.count(EVENT) == 12 and said.count("[prices]") == 240


def test_a_short_lineage_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    step = {"version": "2", "intervention": "memory", "description": "word " * 40, "evidence": {}, "approval": None,
            "served_from": []}  # fmt: skip
    lineage._tree("support", [step])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80 and said.count("word") == 40


@pytest.mark.parametrize(
    ("route", "says"),
    [
        (
            Route(agent="support", champion="2", previous="3", withdrawn="3", salt="s-1", changed_at="2026-11-30"),
            "support: version 2 serves; every gateway answered with it 0.21 s later\nwithdrawn: version 3\n",
        ),
        (
            Route(agent="support", champion="3", previous="2", salt="s-1"),
            "support: version 3 serves; every gateway answered with it 0.21 s later\nprevious: version 2\n",
        ),
    ],
    ids=["rollback", "promotion"],
)
def test_a_flip_tells_who_serves_and_none_of_the_routes_insides(
    route: Route, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    following.tell(route, 0.21, False)
    assert capsys.readouterr().out == says
    following.tell(route, 0.21, True)
    assert '"salt": "s-1"' in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_shown_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x9b31m\r\u202eb\ud800\tc\nd"
    output.show([{"name": evil, "n": 1}], False)
    output.show({"name": evil, "more": {"of": [evil]}}, False)
    output.out.print(evil, markup=False)
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x9b\r\u202e\ud800")
    assert said.count("\\x1b[2J\\x9b31m\\r\\u202eb\\ud800") == 3
