"""A constitution: the written principles a judge goes by (Bai et al. 2022, "Constitutional AI").

A TOML file with a name and a list of principles, each with an id that verdicts can refer to. Its digest is its
version and part of every verdict's source: other principles are another judge.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from atdp import canonical

DEFAULT = Path(__file__).with_name("constitution.toml")


class ConstitutionError(Exception):
    """The file is no constitution; the message says why."""


class Principle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    text: str


class Constitution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    principles: tuple[Principle, ...]

    @property
    def digest(self) -> str:
        return canonical.digest(msgspec.to_builtins(self))

    @property
    def text(self) -> str:
        """The principles as a judge reads them."""
        return "\n".join(f"- {p.id}: {p.text}" for p in self.principles)


def read_constitution(path: Path = DEFAULT) -> Constitution:
    """Read and check a constitution; raises `ConstitutionError`."""
    try:
        read = msgspec.convert(tomllib.loads(path.read_text()), Constitution)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConstitutionError(f"{path}: {error}") from error
    ids = [p.id for p in read.principles]
    if not ids or len(set(ids)) != len(ids) or not all(p.text.strip() for p in read.principles):
        raise ConstitutionError(f"{path}: principles need different ids and a text each, and there must be one")
    return read
