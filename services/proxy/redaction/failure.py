"""What may be said in a log about a failure: where it was and of which kind, never what it was about."""

from __future__ import annotations

from pathlib import Path


def described(error: BaseException) -> str:
    """`KeyError at walk.py:84`. An error's own words may quote the very text that was to be hidden."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{where}"
