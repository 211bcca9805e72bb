"""The health question of a component without a port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evoplane.stack.components import lives


def test_a_component_is_healthy_while_the_process_named_in_its_file_lives(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    healthy = lives(file)
    assert not healthy()
    file.write_text("")
    assert not healthy()
    file.write_text(str(os.getpid()))
    assert healthy()


def test_a_file_left_by_a_killed_process_is_not_health(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    file = tmp_path / "ready"
    file.write_text(str(child.pid))
    assert lives(file)()
    child.kill()
    child.wait()
    assert not lives(file)()
