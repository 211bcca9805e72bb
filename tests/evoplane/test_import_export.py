"""`evoplane trajectories import|export` and `evoplane atdp check`, as somebody types them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atdp.canonical import digest
from evoplane.cli.main import app
from evoplane.settings import settings
from registry import control, tenants
from registry.tenants import RegistryError
from tests.shared import DATA, REASON, SHARED


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOPLANE_PATHS__VAR", str(tmp_path / "var"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    line = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
    file.write_text(json.dumps(line) + "\n")
    return file


def tenant(train: Any = "pending") -> None:
    tenants.create_tenant(control.connect(settings().control_db), "acme", train=train)


def run(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def import_(*files: Path) -> dict[str, Any]:
    result = run("trajectories", "import", *files, "--tenant", "acme", "--agent", "support", "--json")
    assert result.exit_code == 0
    return dict(json.loads(result.stdout))


def test_what_is_nested_too_deeply_is_refused_in_a_line(sft: Path) -> None:
    tenant()
    content = '{"a":' * 900 + "1" + "}" * 900
    sft.write_text(
        f'{{"messages": [{{"role": "user", "content": {content}}}, {{"role": "assistant", "content": ""}}]}}\n'
    )
    with pytest.raises(RegistryError, match=r"chats\.jsonl: item \d is nested too deeply"):
        import_(sft)


def test_an_import_says_what_is_new_and_a_second_one_that_nothing_is(sft: Path) -> None:
    tenant()
    first, second = import_(sft), import_(sft)
    assert (first["new_trajectories"], first["new_records"]) == (1, 2)
    assert (second["trajectories"], second["new_trajectories"], second["new_records"]) == (1, 0, 0)
    assert first["files"][0]["format"] == "openai-sft"
    assert first["files"][0]["loss"]["notes"]["time"]["count"] == 1


def test_an_import_for_people_shows_the_loss_report(sft: Path) -> None:
    tenant()
    result = run("trajectories", "import", sft, "--tenant", "acme", "--agent", "support")
    assert "no times in the source" in result.output
    assert "1 trajectories, 2 records (1 and 2 of them new)" in result.output


def test_what_was_imported_past_its_retention_is_told_to_wait_for_its_end(sft: Path, tmp_path: Path) -> None:
    tenant()
    policy = tmp_path / "policy.toml"
    policy.write_text("retention_days = 30\n")
    run("tenant", "policy", "set", "acme", policy)
    os.utime(sft, (0, 0))  # the source has no times: its file's count
    import_(sft)
    said = json.loads(run("tenant", "retain", "acme", "--json").stdout)
    assert (said["erased"], len(said["open"])) == ([], 1)
    assert said["open_until"].startswith("1 past their time wait for their end")
    assert "1800 s (gateway.session_idle_s)" in run("tenant", "retain", "acme").output


def test_an_import_needs_a_tenant_a_known_format_and_content_of_it(sft: Path, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="create it with"):
        run("trajectories", "import", sft, "--tenant", "acme", "--agent", "support")
    tenant()
    for arguments, message in (
        ([sft, "--format", "parquet"], "no format 'parquet'"),
        ([sft, "--format", "tau-bench"], "not one JSON document|JSON array of runs"),
        ([tmp_path / "notes.txt"], "neither one JSON document"),
    ):
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(RegistryError, match=message):
            run("trajectories", "import", *arguments, "--tenant", "acme", "--agent", "support")


def test_an_export_in_the_same_format_is_what_was_imported(sft: Path, tmp_path: Path) -> None:
    tenant("allow")
    import_(sft)
    out = tmp_path / "out.jsonl"
    result = run("trajectories", "export", out, "--tenant", "acme", "--format", "openai-sft", "--json")
    assert out.read_text() == sft.read_text()
    report = json.loads(result.stdout)
    assert (report["purpose"], report["withheld"]) == ("train", 0)
    assert "trajectory.gov.tenant" in report["loss"]["lost"]


def test_what_may_not_train_is_withheld_from_training_files_unless_the_purpose_is_another(
    sft: Path, tmp_path: Path
) -> None:
    tenant()
    import_(sft)
    out = tmp_path / "out.jsonl"
    result = run("trajectories", "export", out, "--format", "openai-sft")
    assert out.read_bytes() == b""
    assert "1 trajectories withheld: not eligible for train" in result.output
    run("trajectories", "export", out, "--format", "openai-sft", "--purpose", "debug")
    assert out.read_text() == sft.read_text()


def test_an_exported_file_conforms_and_can_be_imported_elsewhere(sft: Path, tmp_path: Path) -> None:
    tenant()
    import_(sft)
    out = tmp_path / "out.jsonl"
    run("trajectories", "export", out)
    checked = run("atdp", "check", out)
    assert checked.exit_code == 0
    assert "4 records: conforms to ATDP 1.0" in checked.output
    tenants.create_tenant(control.connect(settings().control_db), "other")
    again = run("trajectories", "import", out, "--tenant", "other", "--agent", "support", "--json")
    assert json.loads(again.stdout)["new_records"] == 2
    assert json.loads(again.stdout)["files"][0]["loss"]["notes"] == {}
    assert run("trajectories", "verify", "--tenant", "other").exit_code == 0


def test_a_file_that_was_altered_fails_the_check_and_is_noted_on_import(sft: Path, tmp_path: Path) -> None:
    tenant()
    import_(sft)
    out = tmp_path / "out.jsonl"
    run("trajectories", "export", out)
    out.write_text(out.read_text().replace('"yo"', '"no"'))
    checked = CliRunner().invoke(app, ["atdp", "check", str(out), "--json"])
    assert checked.exit_code == 1
    assert {finding["rule"] for finding in json.loads(checked.stdout)["findings"]} == {"hash"}
    tenants.create_tenant(control.connect(settings().control_db), "other")
    result = run("trajectories", "import", out, "--tenant", "other", "--agent", "support", "--json")
    assert json.loads(result.stdout)["files"][0]["loss"]["notes"]["altered"]["count"] == 1


def test_the_check_takes_a_document_of_quoted_records_as_an_excerpt(tmp_path: Path) -> None:
    file = tmp_path / "example.json"
    body = {"model": {"name": "m"}}
    file.write_text(
        json.dumps({"context": {"atdp": "1.0", "record": "context", "id": digest(body), "body": body}}, indent=1)
    )
    result = run("atdp", "check", file, "--json")
    assert json.loads(result.stdout) == {"ok": True, "records": 1, "excerpt": True, "findings": []}


@pytest.mark.parametrize("levels", [900, 100_000])
def test_a_file_nested_too_deeply_is_a_finding(tmp_path: Path, levels: int) -> None:
    file = tmp_path / "deep.json"
    extension = '{"record":"trajectory","ext":' + '{"a":' * levels + "1" + "}" * (levels + 1)
    for text in ("[" * levels, "[" * levels + "]" * levels, extension):
        file.write_text(text + "\n")
        checked = CliRunner().invoke(app, ["atdp", "check", str(file), "--json"])
        assert checked.exit_code == 1
        assert len(json.loads(checked.stdout)["findings"]) == 1


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
def test_the_published_examples_pass_the_check() -> None:
    assert run("atdp", "check", SHARED / "atdp" / "examples.json").exit_code == 0


def test_rules_and_formats_can_be_listed() -> None:
    rules = json.loads(run("atdp", "rules", "--json").stdout)
    formats = json.loads(run("trajectories", "formats", "--json").stdout)
    assert {"rule": "hash"}.items() <= next(rule for rule in rules if rule["rule"] == "hash").items()
    assert {"atif", "otlp", "tau-bench", "trl-grpo"} <= {format["format"] for format in formats}


@pytest.mark.skipif(not DATA.exists(), reason=REASON)
def test_public_runs_and_the_verdicts_on_them_import_verify_and_come_back(tmp_path: Path) -> None:
    tenant("allow")
    folder = DATA / "tau2-airline"
    verdicts = sorted(folder.glob("judge*.jsonl"))
    done = import_(*verdicts, folder / "gpt-4o_airline.json")
    assert done["waiting"] == 0
    assert done["new_trajectories"] == 50
    assert run("trajectories", "verify", "--tenant", "acme").exit_code == 0
    out = tmp_path / "out.jsonl"
    run("trajectories", "export", out, "--format", "judge-verdicts")
    written = sorted((json.loads(line) for line in out.read_text().splitlines()), key=str)
    given = sorted((json.loads(line) for file in verdicts for line in file.read_text().splitlines()), key=str)
    key = ("simulation_id", "judge_verdict", "judge_prompt_name", "judge_justification")
    assert sorted([row[k] for k in key] for row in written) == sorted([row[k] for k in key] for row in given)


SECRET = "AKIAIOSFODNN7EXAMPLE"


def planted(tmp_path: Path) -> Path:
    file = tmp_path / "planted.jsonl"
    said = [
        {"role": "user", "content": f"my key is {SECRET}, mail ann.miller@example.com"},
        {"role": "assistant", "content": f"I noted {SECRET}."},
    ]
    file.write_text(json.dumps({"messages": said}) + "\n")
    return file


def on_disk() -> list[bytes]:
    return [path.read_bytes() for path in settings().var.rglob("*") if path.is_file()]


def test_a_secret_in_an_imported_file_is_on_the_disk_nowhere_in_the_clear(tmp_path: Path) -> None:
    tenant()
    done = import_(planted(tmp_path))
    assert done["hidden"] == 2
    assert not any(SECRET.encode() in data or b"ann.miller" in data for data in on_disk())
    assert run("trajectories", "verify", "--tenant", "acme").exit_code == 0


def kept() -> dict[str, int]:
    """Rows of each table, and sizes of other files. Sizes of databases and of what lies beside them say nothing: they
    change whenever a connection happens to be closed."""
    found: dict[str, int] = {}
    for path in settings().var.rglob("*"):
        if path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as connection:
                for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall():
                    (found[f"{path.name} {table}"],) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        elif path.is_file() and ".sqlite-" not in path.name:
            found[str(path)] = path.stat().st_size
    return found


def test_importing_something_hidden_again_seals_nothing_again(tmp_path: Path) -> None:
    tenant()
    file = planted(tmp_path)
    assert import_(file)["hidden"] == 2
    before = kept()
    again = import_(file)
    assert (again["new_trajectories"], again["new_records"], again["hidden"]) == (0, 0, 0)
    assert kept() == before


def test_an_exported_file_with_sealed_content_conforms(tmp_path: Path) -> None:
    tenant()
    import_(planted(tmp_path))
    out = tmp_path / "out.jsonl"
    run("trajectories", "export", out)
    assert run("atdp", "check", out).exit_code == 0
