"""Verdicts in what tools print: test runners, compilers, type checkers, linters.

Only a runner's own summary counts, never words in a log. A verdict says how much passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOOKED_AT = 200_000
"""Characters from the end: a summary comes last."""

Sort = Literal["tests", "build", "types", "lint", "run"]


class Verdict(NamedTuple):
    """What one runner said in the end."""

    runner: str
    sort: Sort
    passed: int
    failed: int
    """Failures and errors; of a compiler or a linter, its errors."""

    @property
    def ok(self) -> bool:
        return self.failed == 0

    @property
    def share(self) -> float:
        """The share that passed, 0 to 1."""
        return self.passed / (self.passed + self.failed) if self.passed + self.failed else float(self.ok)


def verdicts(text: str) -> list[Verdict]:
    """Every runner's verdict in a tool's output, the last of each runner."""
    plain = _ANSI.sub("", text[-_LOOKED_AT:]).replace("\r\n", "\n")
    found = [
        verdict for read, cues in _READERS if any(cue in plain for cue in cues) and (verdict := read(plain)) is not None
    ]
    if not found and (crash := _crash(plain)) is not None:
        found.append(crash)
    return found


def _number(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else 0


def _last(pattern: str, text: str, flags: int = re.MULTILINE) -> re.Match[str] | None:
    found = None
    for found in re.finditer(pattern, text, flags):  # noqa: B007
        pass
    return found


_PYTEST_COUNT = r"\d+ (?:failed|passed|skipped|errors?|xfailed|xpassed|deselected|warnings?|rerun)(?:, )?"


def _pytest(text: str) -> Verdict | None:
    line = _last(rf"^=* ?((?:{_PYTEST_COUNT})+) in [\d.:]+ ?s?.*$", text)
    if line is None or not re.search(r"\d+ (failed|passed|error)", line[1]):
        return None
    failed = _number(line[1], r"(\d+) failed") + _number(line[1], r"(\d+) error")
    return Verdict("pytest", "tests", _number(line[1], r"(\d+) passed"), failed)


def _unittest(text: str) -> Verdict | None:
    ran = _last(r"^Ran (\d+) tests? in [\d.]+s$", text)
    if ran is None:
        return None
    end = re.search(r"^(OK|FAILED)(?: \((.*)\))?$", text[ran.end() :], re.MULTILINE)
    if end is None:
        return None
    detail = end[2] or ""
    failed = _number(detail, r"failures=(\d+)") + _number(detail, r"errors=(\d+)")
    failed = max(failed, 1) if end[1] == "FAILED" else 0
    return Verdict("unittest", "tests", max(int(ran[1]) - failed, 0), failed)


def _jest(text: str) -> Verdict | None:
    line = _last(r"^ *Tests:? +((?:\d+ (?:failed|passed|skipped|todo)[ ,|]*)+)(?:\d+ total|\(\d+\))\s*$", text)
    if line is None:
        return None
    return Verdict("jest", "tests", _number(line[1], r"(\d+) passed"), _number(line[1], r"(\d+) failed"))


def _mocha(text: str) -> Verdict | None:
    passing, failing = _last(r"^ +(\d+) passing \(\d+m?s?\)$", text), _last(r"^ +(\d+) failing$", text)
    if passing is None:
        return None
    after = failing is not None and failing.start() > passing.start()
    return Verdict("mocha", "tests", int(passing[1]), int(failing[1]) if failing is not None and after else 0)


def _tap(text: str) -> Verdict | None:
    passed, failed = _last(r"^# pass +(\d+)$", text), _last(r"^# fail +(\d+)$", text)
    if passed is None or failed is None:
        return None
    return Verdict("tap", "tests", int(passed[1]), int(failed[1]))


def _go(text: str) -> Verdict | None:
    ok = len(re.findall(r"^ok  ?\t\S+\t[\d.()a-z]+", text, re.MULTILINE))
    bad = len(re.findall(r"^FAIL\t\S+\t?[\d.]*s?|^FAIL\t\S+ \[build failed\]", text, re.MULTILINE))
    return Verdict("go test", "tests", ok, bad) if ok or bad else None


def _cargo_test(text: str) -> Verdict | None:
    lines = re.findall(r"^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed;", text, re.MULTILINE)
    if not lines:
        return None
    return Verdict("cargo test", "tests", sum(int(p) for p, _ in lines), sum(int(f) for _, f in lines))


def _maven(text: str) -> Verdict | None:
    line = _last(r"^(?:\[\w+\] )?Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: \d+\s*$", text)
    if line is None:
        return None
    failed = int(line[2]) + int(line[3])
    return Verdict("maven", "tests", int(line[1]) - failed, failed)


def _rspec(text: str) -> Verdict | None:
    line = _last(r"^(\d+) examples?, (\d+) failures?(?:, \d+ pending)?$", text)
    return Verdict("rspec", "tests", int(line[1]) - int(line[2]), int(line[2])) if line else None


def _phpunit(text: str) -> Verdict | None:
    if (ok := _last(r"^OK \((\d+) tests?, \d+ assertions?\)$", text)) is not None:
        return Verdict("phpunit", "tests", int(ok[1]), 0)
    line = _last(r"^Tests: (\d+), Assertions: \d+(.*)\.$", text)
    if line is None:
        return None
    failed = _number(line[2], r"Failures: (\d+)") + _number(line[2], r"Errors: (\d+)")
    return Verdict("phpunit", "tests", int(line[1]) - failed, failed)


def _dotnet(text: str) -> Verdict | None:
    line = _last(r"^(?:Passed|Failed)! +- Failed: +(\d+), Passed: +(\d+), ", text)
    return Verdict("dotnet test", "tests", int(line[2]), int(line[1])) if line else None


def _cargo_build(text: str) -> Verdict | None:
    errors = len(re.findall(r"^error\[E\d+\]: ", text, re.MULTILINE))
    if errors or re.search(r"^error: could not compile ", text, re.MULTILINE):
        return Verdict("cargo", "build", 0, max(errors, 1))
    return Verdict("cargo", "build", 1, 0) if _last(r"^ +Finished [`\w\[\] +().-]+ in [\d.]+m? ?\S*$", text) else None


def _c_compiler(text: str) -> Verdict | None:
    errors = len(re.findall(r"^[^\s:][^:\n]*\.\w+:\d+:\d+: (?:fatal )?error: ", text, re.MULTILINE))
    errors += len(re.findall(r"^[^\n]*: undefined reference to [`']", text, re.MULTILINE))
    return Verdict("gcc/clang", "build", 0, errors) if errors else None


def _javac(text: str) -> Verdict | None:
    errors = len(re.findall(r"^(?:\[ERROR\] )?\S+\.(?:java|kt):\[?\d+(?:,\d+\])?:? error: ", text, re.MULTILINE))
    return Verdict("javac", "build", 0, errors) if errors else None


def _build_tool(text: str) -> Verdict | None:
    line = _last(r"^(?:\[\w+\] )?BUILD (SUCCESS(?:FUL)?|FAIL(?:URE|ED))\b", text)
    return Verdict("build", "build", int(line[1][0] == "S"), int(line[1][0] == "F")) if line else None


def _go_build(text: str) -> Verdict | None:
    errors = len(re.findall(r"^(?:\./)?\S+\.go:\d+:\d+: (?!warning)", text, re.MULTILINE))
    return Verdict("go build", "build", 0, errors) if errors else None


def _tsc(text: str) -> Verdict | None:
    errors = len(re.findall(r"^\S+\.\w?tsx?(?:\(\d+,\d+\):|:\d+:\d+ -) error TS\d+:", text, re.MULTILINE))
    return Verdict("tsc", "types", 0, errors) if errors else None


def _mypy(text: str) -> Verdict | None:
    bad = _last(r"^Found (\d+) errors? in \d+ files? \(.*\)$", text)
    if bad is not None:
        return Verdict("mypy", "types", 0, int(bad[1]))
    return Verdict("mypy", "types", 1, 0) if _last(r"^Success: no issues found in \d+ source files?$", text) else None


def _pyright(text: str) -> Verdict | None:
    line = _last(r"^(\d+) errors?, \d+ warnings?, \d+ informations? *$", text)
    return Verdict("pyright", "types", int(line[1] == "0"), int(line[1])) if line else None


def _ruff(text: str) -> Verdict | None:
    bad = _last(r"^Found (\d+) errors?(?: \(.*\))?\.$", text)
    if bad is not None:
        fixed = _number(bad[0], r"(\d+) fixed, 0 remaining")
        return Verdict("ruff", "lint", int(bool(fixed)), 0 if fixed else int(bad[1]))
    return Verdict("ruff", "lint", 1, 0) if _last(r"^All checks passed!$", text) else None


def _eslint(text: str) -> Verdict | None:
    line = _last(r"^✖ \d+ problems? \((\d+) errors?, \d+ warnings?\)$", text)
    return Verdict("eslint", "lint", int(line[1] == "0"), int(line[1])) if line else None


def _crash(text: str) -> Verdict | None:
    """A program that ended by an exception nobody caught: the traceback is the last thing it printed."""
    start = text.rfind("Traceback (most recent call last):")
    if start < 0:
        return None
    after = re.search(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*$", text[start:], re.MULTILINE)
    if after is None or len(text[start + after.end() :].strip()) > _TAIL:
        return None
    return Verdict("python", "run", 0, 1)


_TAIL = 200
"""Characters a shell may add behind a traceback (a prompt, an exit status)."""

_READERS: tuple[tuple[Callable[[str], Verdict | None], tuple[str, ...]], ...] = (
    (_pytest, ("passed", "failed", "error")),
    (_unittest, ("Ran ",)),
    (_jest, ("Tests",)),
    (_mocha, (" passing (",)),
    (_tap, ("# pass",)),
    (_go, ("ok  ", "FAIL\t")),
    (_cargo_test, ("test result: ",)),
    (_maven, ("Tests run: ",)),
    (_rspec, (" example",)),
    (_phpunit, ("OK (", "Assertions: ")),
    (_dotnet, ("Failed: ",)),
    (_cargo_build, ("error[E", "could not compile", "Finished ")),
    (_c_compiler, ("error: ", "undefined reference")),
    (_javac, ("error: ",)),
    (_build_tool, ("BUILD ",)),
    (_go_build, (".go:",)),
    (_tsc, ("error TS",)),
    (_mypy, ("Found ", "Success: no issues")),
    (_pyright, (" informations",)),
    (_ruff, ("Found ", "All checks passed!")),
    (_eslint, (" problem",)),
)
"""Each with words of which one stands in every summary of its runner: most outputs are done after these."""
