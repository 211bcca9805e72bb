"""Verdicts of runners in what tools print, and none where there is only talk of failing."""

from __future__ import annotations

import pytest

from services.proxy.harvest.outputs import verdicts

SAID = {
    "pytest": ("pytest", 3, 1, "F...\n=================== FAILURES ===\nE  assert 1 == 2\n======= 1 failed, 3 passed, 2 warnings in 0.12s =======\n"),
    "pytest quiet": ("pytest", 5, 0, ".....\n5 passed in 0.03s\n"),
    "pytest errors": ("pytest", 0, 2, "=== short test summary info ===\nERROR a.py\n!!! Interrupted: 2 errors\n=== 2 errors in 0.40s ===\n"),
    "pytest colours": ("pytest", 1, 0, "\x1b[32m===== \x1b[32m\x1b[1m1 passed\x1b[0m\x1b[32m in 0.01s\x1b[0m\x1b[32m =====\x1b[0m\n"),
    "unittest": ("unittest", 3, 0, "...\n----------------------------------------------------------------------\nRan 3 tests in 0.001s\n\nOK\n"),
    "unittest bad": ("unittest", 1, 2, "FE.\n-----\nRan 3 tests in 0.002s\n\nFAILED (failures=1, errors=1)\n"),
    "jest": ("jest", 2, 1, "Test Suites: 1 failed, 1 total\nTests:       1 failed, 2 passed, 3 total\nSnapshots:   0 total\n"),
    "vitest": ("jest", 2, 1, " Test Files  1 failed (1)\n      Tests  1 failed | 2 passed (3)\n   Start at  10:00:00\n"),
    "mocha": ("mocha", 4, 1, "  4 passing (12ms)\n  1 failing\n\n  1) adds\n"),
    "node": ("tap", 2, 0, "# tests 2\n# pass 2\n# fail 0\n"),
    "go": ("go test", 1, 1, "ok  \texample.com/a\t0.003s\n--- FAIL: TestB (0.00s)\n    b_test.go:5: no\nFAIL\nFAIL\texample.com/b\t0.002s\nFAIL\n"),
    "cargo test": ("cargo test", 5, 1, "test result: ok. 2 passed; 0 failed; 0 ignored\ntest result: FAILED. 3 passed; 1 failed; 0 ignored\n"),
    "maven": ("maven", 4, 1, "[ERROR] Tests run: 5, Failures: 1, Errors: 0, Skipped: 0\n"),
    "rspec": ("rspec", 4, 1, "5 examples, 1 failure\n"),
    "phpunit": ("phpunit", 5, 0, "OK (5 tests, 9 assertions)\n"),
    "phpunit bad": ("phpunit", 4, 1, "FAILURES!\nTests: 5, Assertions: 9, Failures: 1.\n"),
    "dotnet": ("dotnet test", 3, 0, "Passed!  - Failed:     0, Passed:     3, Skipped:     0, Total: 3\n"),
    "cargo": ("cargo", 0, 1, "error[E0308]: mismatched types\n --> src/main.rs:2:5\nerror: could not compile `a` due to 1 previous error\n"),
    "cargo fine": ("cargo", 1, 0, "   Compiling a v0.1.0\n    Finished dev [unoptimized + debuginfo] target(s) in 0.52s\n"),
    "gcc": ("gcc/clang", 0, 2, "a.c: In function 'main':\na.c:3:5: error: 'x' undeclared\na.c:4:1: fatal error: b.h: No such file\n"),
    "linker": ("gcc/clang", 0, 1, "/usr/bin/ld: a.o: in function `main':\na.c:(.text+0x5): undefined reference to `f'\n"),
    "javac": ("javac", 0, 1, "Main.java:3: error: ';' expected\n    int x\n         ^\n1 error\n"),
    "gradle": ("build", 1, 0, "BUILD SUCCESSFUL in 3s\n"),
    "go build": ("go build", 0, 1, "# example.com/a\n./a.go:3:2: undefined: x\n"),
    "tsc": ("tsc", 0, 1, "src/a.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'.\n"),
    "mypy": ("mypy", 0, 2, "a.py:1: error: no\na.py:2: error: no\nFound 2 errors in 1 file (checked 3 source files)\n"),
    "mypy fine": ("mypy", 1, 0, "Success: no issues found in 3 source files\n"),
    "pyright": ("pyright", 0, 3, "3 errors, 0 warnings, 0 informations \n"),
    "ruff": ("ruff", 0, 2, "a.py:1:1: F401\nFound 2 errors.\n[*] 1 fixable with the `--fix` option.\n"),
    "ruff fine": ("ruff", 1, 0, "All checks passed!\n"),
    "eslint": ("eslint", 0, 2, "✖ 3 problems (2 errors, 1 warning)\n"),
    "crash": ("python", 0, 1, 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    1/0\nZeroDivisionError: division by zero\n'),
}  # fmt: skip

NOT_SAID = [
    "",
    "The test failed because 3 passed arguments were wrong.",
    "I expect 5 passed tests.",
    "grep: FAILED (failures=1)",
    "error: this is what the customer reported",
    "def test_a():\n    assert True  # 1 passed\n",
    "Caught and handled:\nTraceback (most recent call last):\n  File 'a'\nValueError: x\n"
    + "and then the work went on. " * 20,
    "no tests ran in 0.01s",
    "collected 0 items\n",
    "Found 3 results.",
]


@pytest.mark.parametrize("name", SAID)
def test_a_runners_summary_is_read(name: str) -> None:
    runner, passed, failed, text = SAID[name]
    (verdict,) = verdicts(text)
    assert (verdict.runner, verdict.passed, verdict.failed) == (runner, passed, failed)
    assert verdict.ok == (failed == 0)


@pytest.mark.parametrize("text", NOT_SAID)
def test_talk_of_passing_and_failing_is_no_verdict(text: str) -> None:
    assert verdicts(text) == []


def test_the_last_run_counts() -> None:
    (verdict,) = verdicts("1 failed, 1 passed in 0.1s\nfixed it\n2 passed in 0.1s\n")
    assert (verdict.passed, verdict.failed) == (2, 0)


def test_a_large_output_is_read_in_little_time() -> None:
    import time

    text = ("x" * 150 + ": error " * 3 + "\n") * 5000 + "=== 1 passed in 0.1s ===\n"
    began = time.perf_counter()
    assert [verdict.runner for verdict in verdicts(text)] == ["pytest"]
    assert time.perf_counter() - began < 1
