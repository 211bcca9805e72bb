"""`python -m benchmarks.monitor VAR [--seeds N] [--quiet-seeds N] [--quick] [--write PAGE]`

The figures as JSON, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # Great Expectations' progress bars

from benchmarks.monitor.run import run, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor")
    parser.add_argument("var", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quiet-seeds", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    found = run(
        given.var,
        seeds=given.seeds,
        quiet_seeds=given.quiet_seeds,
        quick=given.quick,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if given.write is not None:
        write(found, given.write)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
