from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest
import typer
from typer.testing import CliRunner

from evoplane.cli.commands import COMMANDS, Commands, load
from evoplane.cli.main import app, main
from evoplane.settings import settings
from registry.tenants import RegistryError

runner = CliRunner()


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVOPLANE_PATHS__VAR", str(tmp_path / "var"))
    settings.cache_clear()
    yield
    settings.cache_clear()


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, listed in group.commands.items():
        command = load(name) if isinstance(group, Commands) else listed
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = list(commands(typer.main.get_command(app)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_helps_with_an_example(path: tuple[str, ...], command: click.Command) -> None:
    assert f"evoplane {' '.join(path)}" in (command.help or "")


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_speaks_json(path: tuple[str, ...], command: click.Command) -> None:
    if path[-1] in ("serve", "wrap", "version"):  # two become a server, the third prints one word
        return
    assert any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    first_paragraph = (load(name).help or "").split("\n\n")[0].replace("\n", " ")
    assert COMMANDS[name].help == first_paragraph


@pytest.mark.parametrize(
    "arguments", [["--help"], ["version"], ["rollback", "--agent", "nobody"]], ids=lambda given: given[0]
)
def test_a_quick_command_imports_nothing_slow(arguments: list[str]) -> None:
    slow = ("scipy", "numpy", "pandas", "httpx", "evaluators", "services.proxy.store")
    program = (
        "import sys\n"
        "from evoplane.cli.main import app\n"
        f"try: app({arguments!r})\n"
        f"finally: print([name for name in {slow!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "[]" in done.stderr.splitlines(), done.stderr


def run(*arguments: str) -> object:
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_tenant_once_made_is_listed() -> None:
    run("tenant", "create", "acme", "--train", "allow")
    assert run("tenant", "list") == [{"id": "acme", "name": "acme", "train": "allow"}]


def test_nothing_captured_verifies_clean() -> None:
    assert run("trajectories", "verify") == {"ok": True, "trajectories": 0, "events": 0, "problems": []}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rollback", "--agent", "nobody"], "no serving version"),
        (["lineage", "--agent", "nobody"], "no agent 'nobody'"),
        (["tenant", "retain", "nobody"], "no tenant 'nobody'"),
        (["trajectories", "import", "/dev/zero", "--tenant", "acme", "--agent", "a"], "/dev/zero is no regular file"),
        (["atdp", "check", "/dev/zero"], "/dev/zero is no regular file"),
        (["tenant", "policy", "show", "../x"], "no tenant '../x'"),
        (["tenant", "policy", "set", "acme", sys.executable], "is no text in UTF-8"),
        (["trajectories", "list", "--agent", "nobody"], "no agent 'nobody'"),
        (["approvals", "approve", "apr_0", "--by", "dana"], "no approval 'apr_0'"),
        (["lineage", "--agent", "support", "--event", "ev_0"], "no event 'ev_0'"),
        (["key", "create", "--tenant", "nobody", "--agent", "support"], "evoplane tenant create nobody"),
        (["monitor", "--agent", "nobody"], "evoplane agent create nobody"),
        (["trajectories", "show", "tr_0"], "no trajectory or event"),
    ],
)
def test_a_failure_is_one_line_and_exit_status_1(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["evoplane", *arguments, "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert says in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("EVOPLANE_STORE__DSN", "postgresql://u:hunter2%zz@h/x", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_STORE__DSN", "postgresql://u:hunter2@[bad/x", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_STORE__DSN", "postgresql://u:p@hunter2@h/x", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_STORE__DSN", "postgresql://u:hunter2/x@h/x", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_STORE__DSN", "postgresql://u:1/hunter2@h/x", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_STORE__DSN", "password=hunter2 foo", "EVOPLANE_STORE__DSN is no connection string"),
        ("EVOPLANE_MASTER_KEY", "hunter2", "the variable EVOPLANE_MASTER_KEY holds no key"),
    ],
)
def test_a_secret_that_is_wrong_is_one_line_without_it_and_exit_status_2(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("tenant", "create", "acme")
    if variable == "EVOPLANE_STORE__DSN":
        monkeypatch.setenv("EVOPLANE_STORE__ENGINE", "postgres")
    monkeypatch.setenv(variable, value)
    settings.cache_clear()
    command = ["trajectories", "list"] if "DSN" in variable else ["tenant", "rotate-key", "acme"]
    monkeypatch.setattr("sys.argv", ["evoplane", *command])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {says}")
    assert "hunter2" not in line


def test_no_more_trajectories_are_asked_for_than_a_database_counts() -> None:
    assert runner.invoke(app, ["trajectories", "list", "--limit", str(2**63 - 1)]).exit_code == 2


def test_a_wrong_configuration_is_one_line_as_it_is_written_and_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evoplane.toml"
    file.write_text("gateway = 3\n")
    monkeypatch.setenv("EVOPLANE_CONFIG", str(file))
    monkeypatch.setattr("sys.argv", ["evoplane", "tenant", "list"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: wrong settings in {file}: gateway must be a section, [gateway]\n"


def test_setting_a_policy_says_what_changes_and_showing_it_what_is_a_default(tmp_path: Path) -> None:
    run("tenant", "create", "acme")
    file = tmp_path / "policy.toml"
    file.write_text('retention_days = 30\nredaction = "strict"\n')
    assert run("tenant", "policy", "set", "acme", str(file))["changed"] == {  # type: ignore[index]
        "redaction": {"old": "standard", "new": "strict"},
        "retention_days": {"old": None, "new": 30},
    }
    shown = run("tenant", "policy", "show", "acme")
    assert shown["reasoning"] == "seal" and "reasoning" in shown["defaults"]  # type: ignore[index]
    assert "retention_days" not in shown["defaults"]  # type: ignore[index]
    told = runner.invoke(app, ["tenant", "policy", "show", "acme"]).output.splitlines()
    assert {"redaction  strict", "reasoning  seal (default)", "retention_days  30"} <= set(told)
    file.write_text('retention_days = 7\nredaction = "strict"\n')
    told = runner.invoke(app, ["tenant", "policy", "set", "acme", str(file)]).output.splitlines()
    assert told[2:] == ["retention_days  30 -> 7"]
    told = runner.invoke(app, ["tenant", "policy", "set", "acme", str(file)]).output.splitlines()
    assert told[2:] == ["nothing changed: this is its policy already"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ('[actions]\nEMAIL = "keep"\nEMAIL_ADDRESS = "mask"', ["actions: EMAIL not known", "EMAIL_ADDRESS", "US_SSN"]),
        ('countries = ["usa", "de"]', ["countries: usa not known", "de, dk, es"]),
    ],
)
def test_a_policy_with_a_name_that_nothing_finds_is_refused_with_the_known_ones(
    tmp_path: Path, policy: str, says: list[str]
) -> None:
    run("tenant", "create", "acme")
    file = tmp_path / "policy.toml"
    file.write_text(policy)
    result = runner.invoke(app, ["tenant", "policy", "set", "acme", str(file), "--json"])
    assert isinstance(result.exception, RegistryError)
    for words in says:
        assert words in str(result.exception)
    assert run("tenant", "policy", "show", "acme")["actions"] == {}  # type: ignore[index]


def test_a_policy_may_name_its_own_dictionaries_and_fields(tmp_path: Path) -> None:
    run("tenant", "create", "acme")
    file = tmp_path / "policy.toml"
    file.write_text(
        'countries = ["us", "uk", "de"]\n[actions]\nPROJECT = "mask"\nBADGE = "mask"\nAPI_KEY = "drop"\n'
        '[[dictionaries]]\nname = "project"\nterms = ["Blue Heron"]\n[[fields]]\nfield = "badge"\nentity = "BADGE"\n'
    )
    assert run("tenant", "policy", "set", "acme", str(file))["policy"] == "standard+tenant"  # type: ignore[index]


def test_a_refusal_of_the_gateway_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([httpx.Response(400, json={"error": {"message": "'resolved' is 0 or 1."}}), httpx.Response(502)])
    monkeypatch.setattr(httpx, "post", lambda *_, **__: next(refusals))
    monkeypatch.setenv("EVOPLANE_KEY", "evo_test")
    for says in ("the gateway refused: 'resolved' is 0 or 1.", "the gateway refused: 502"):
        result = runner.invoke(app, ["feedback", "resolved", "2", "--session", "se_1"])
        assert isinstance(result.exception, RegistryError) and str(result.exception).startswith(says)
