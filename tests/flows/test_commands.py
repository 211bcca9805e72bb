"""What `python -m …` is asked for its usage tells it, and begins nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOWS = sorted(p.stem for p in (ROOT / "flows").glob("*.py") if '__name__ == "__main__"' in p.read_text())
COMMANDS = [*(f"flows.{name}" for name in FLOWS), "services.gateway", "services.worker"]


@pytest.mark.stack
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_tells_how_it_is_used_and_starts_nothing(name: str, tmp_path: Path) -> None:
    nowhere = {"EVOPLANE_PATHS__VAR": str(tmp_path / "var"), "PREFECT_API_URL": "http://127.0.0.1:1/api"}
    done = subprocess.run(
        [sys.executable, "-m", name, "--help"],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"python -m {name}" in done.stdout
    assert "Traceback" not in done.stderr
