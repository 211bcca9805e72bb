"""How the monitor watches: false alarms over whole lives, delay after a drop, cost of a million events."""

from benchmarks.watching.run import figures

__all__ = ["figures"]
