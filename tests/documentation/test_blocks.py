"""No code block of the documentation is left out unseen: a test runs it, it is checked here, or it is listed with why.

Commands are parsed by the command line itself (unknown commands, options and missing arguments fail), configuration by
the settings, Python is run. What needs a server is run by the tests that have one.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml

from evoplane.cli.commands import COMMANDS, load
from evoplane.settings import Settings
from registry import tenant_policy
from services.proxy.redaction import catalogue
from tests.documentation.blocks import DOCS, ROOT, block, fenced
from tests.evoplane.test_client import Gateway

PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]

RUN = {
    ("docs/atdp.md", "jsonl"): "tests/atdp/test_specification.py",
    ("docs/boundaries.md", "python"): "tests/documentation/test_blocks.py",
    ("docs/extend.md", "python"): "tests/documentation/test_extend.py",
    ("docs/extend.md", "toml"): "tests/documentation/test_extend.py",
    ("docs/learning.md", "python"): "tests/worker/test_algorithms.py",
    ("docs/learning.md", "toml"): "tests/worker/test_algorithms.py",
    ("docs/connect/hermes.md", "yaml"): "tests/documentation/test_connect.py",
    **{
        (f"docs/connect/{page}.md", "python"): "tests/documentation/test_connect.py"
        for page in ("anthropic", "claude-code", "crewai", "langgraph", "mcp", "openai", "openai-agents")
    },
}
"""(page, language) -> the test that runs these blocks."""

NOT_RUN = {
    ("docs/atdp.md", ""): "pseudocode: what it says is tested by tests/atdp/test_specification.py's vectors",
    ("docs/delivery.md", ""): "a drawing of the stages",
    ("docs/weight-updates.md", ""): "a drawing of states; tests/worker/test_updates.py goes through them",
    ("docs/operations.md", "sql"): "roles of a PostgreSQL of the reader's; tests/proxy/test_postgres.py makes its own",
    ("docs/learning.md", "yaml"): "Accelerate's own file for eight devices, which a test machine lacks",
}
"""(page, language) -> why no test runs these blocks."""

CHECKED = ("bash", "toml", "json")
"""Languages whose blocks are checked here, on whatever page."""

OTHERS = {
    "curl": "what it sends is checked as JSON",
    "source": "the shell's",
    "hermes": "another project's command; its configuration is tested",
    "accelerate": "needs several devices; the module it starts is there",
    "torchrun": "needs several devices; the module it starts is there",
    "your_agent.py": "the reader's own",
}
"""Programs of bash blocks that are not the project's, and why nothing more is asked of them."""


def found(languages: tuple[str, ...]) -> list[tuple[str, str]]:
    """(page, text) of every block in one of these languages."""
    return [
        (str(page.relative_to(ROOT)), text)
        for page in PAGES
        for language, text in fenced(page)
        if language in languages
    ]


def test_every_block_is_run_or_checked_or_listed_with_why_not() -> None:
    there = {(str(page.relative_to(ROOT)), language) for page in PAGES for language, _ in fenced(page)}
    unseen = {place for place in there if place not in RUN and place not in NOT_RUN and place[1] not in CHECKED}
    assert unseen == set(), f"neither run, nor checked, nor listed with why: {unseen}"
    gone = (RUN.keys() | NOT_RUN.keys()) - there
    assert gone == set(), f"listed, but not there: {gone}"


@pytest.mark.parametrize("place", RUN, ids=lambda place: f"{place[0]} {place[1]}")
def test_the_test_that_is_said_to_run_a_page_names_it(place: tuple[str, str]) -> None:
    assert Path(place[0]).stem in (ROOT / RUN[place]).read_text()


@pytest.mark.parametrize(("page", "text"), found(("bash",)))
def test_every_command_shown_is_one_that_there_is(page: str, text: str) -> None:
    lines = text.replace("\\\n", " ")
    if "'[" in lines:  # a body over several lines
        body = re.search(r"'(\[.*\])'", lines, re.DOTALL)
        assert body is not None and all(set(item) >= {"name"} for item in json.loads(body[1]))
        return
    for line in lines.splitlines():
        for words in commands(line):
            check(words)


@pytest.mark.parametrize(("page", "text"), found(("toml",)))
def test_every_configuration_shown_is_one_that_is_taken(page: str, text: str) -> None:
    told = tomllib.loads(text)
    if page == "docs/governance.md":
        catalogue.check(tenant_policy.parse(text))
    elif "project" in told:
        groups = set(told["project"]["entry-points"])
        assert groups <= set(tomllib.loads(block(DOCS / "extend.md", "toml"))["project"]["entry-points"])
    else:
        Settings.model_validate(told)


@pytest.mark.parametrize(("page", "text"), found(("json",)))
def test_every_json_shown_is_json(page: str, text: str) -> None:
    assert json.loads(text)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    listener = Gateway()
    yield listener
    listener.close()


def test_the_client_of_the_boundaries_page_reports_what_the_page_says(gateway: Gateway) -> None:
    text = block(DOCS / "boundaries.md", "python").replace("http://127.0.0.1:8400", gateway.url)
    names: dict[str, Any] = {
        "key": "evo_key", "OpenAI": lambda **_: None, "call": SimpleNamespace(id="call_1"),
        "search": lambda _: ["d1"], "ask_a_person": lambda: "approved",
    }  # fmt: skip
    exec(compile(text, "boundaries.md", "exec"), names)
    names["client"].close()
    assert [(e.get("kind"), e.get("name")) for e in gateway.events][:2] == [
        ("tool_call", "search"),
        ("approval", "refund"),
    ]
    assert callable(names["look_up"])


def test_the_gate_of_the_extend_page_is_at_most_thirty_lines_with_what_announces_it() -> None:
    gate = next(text for language, text in fenced(DOCS / "extend.md") if language == "python")
    assert gate.startswith("def short_diff(candidate)")
    announced = 2  # its entry point: the group's heading and one line
    assert len(gate.splitlines()) + announced <= 30


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, without comments, placeholders' brackets and what sets variables."""
    words = shlex.split(re.sub(r"\[(--\w[\w-]*)(?: [A-Z]+)?\]", r"\1=1", line).replace("--json=1", "--json"), True)
    command: list[str] = []
    for word in [*words, "&&"]:
        if word != "&&":
            command.append(word)
            continue
        while command and (command[0] == "export" or re.match(r"[A-Z_]+=", command[0])):
            command = command[1:]
        if command:
            yield command
        command = []


def check(words: list[str]) -> None:
    program = Path(words[0]).name
    if program == "evoplane":
        parse(words[1:])
    elif program == "make":
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets, words
    elif program == "pytest":
        assert (ROOT / words[1]).exists(), words
    elif "-m" in words:
        module = words[words.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, words
    else:
        assert {program, words[-1]} & OTHERS.keys(), f"nothing is known of {words}"


def parse(arguments: list[str]) -> None:
    """As the command line would, up to where the command would run. Files of the reader's need not be there."""
    assert arguments[0] in COMMANDS, f"no command {arguments[0]!r}"
    command, name, rest = load(arguments[0]), arguments[0], arguments[1:]
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        name, rest = rest[0], rest[1:]
        command = command.get_command(typer.Context(command), name)
        assert command is not None, f"no command {name!r} in {arguments}"
    try:
        command.make_context(name, list(rest))
    except typer.BadParameter as error:
        assert "does not exist" in error.message, (arguments, error.message)
    except Exception as error:  # whatever the command line would say to it
        raise AssertionError(f"{arguments}: {error!r}") from error


def test_a_command_that_is_not_there_would_be_noticed() -> None:
    for wrong in (["rolback"], ["rollback", "--agnet", "support"], ["approvals", "approve"], ["key", "made"]):
        with pytest.raises(AssertionError):
            parse(wrong)


def test_yaml_shown_is_yaml() -> None:
    for _, text in found(("yaml",)):
        assert yaml.safe_load(text)
