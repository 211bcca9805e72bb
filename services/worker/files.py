"""The training program's name for writing a file whole and durably."""

from evoplane.files import write_durably as write_atomically

__all__ = ["write_atomically"]
