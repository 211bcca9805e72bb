"""Reading the configuration: the file, the environment over it, and every wrong key named."""

from __future__ import annotations

import difflib
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from evoplane.settings.deployment import Settings


class SettingsError(Exception):
    """The configuration is wrong; the message names the key and where it came from."""


WRONG_SETTINGS = 2
"""Exit status of a process whose configuration is wrong; that of wrong arguments, too."""

_ENV_PREFIX = "EVOPLANE_"
_ENV_CONFIG = "EVOPLANE_CONFIG"


def read_settings(file: Path | None = None, environ: dict[str, str] | None = None) -> Settings:
    """Read and check the configuration; raises `SettingsError` naming every wrong key."""
    env = dict(os.environ) if environ is None else environ
    path = file or Path(env.get(_ENV_CONFIG, "evoplane.toml"))
    data = _read(path, must_exist=file is None and _ENV_CONFIG in env)
    _refuse_secrets(path, data)
    variables: dict[tuple[int | str, ...], str] = {}
    for name, value in env.items():
        if name.startswith(_ENV_PREFIX) and "__" in name:
            section, _, key = name.removeprefix(_ENV_PREFIX).lower().partition("__")
            if section not in data:
                variables[section,] = name
            if isinstance(data.setdefault(section, {}), dict):  # else the file is wrong, as is said below
                data[section][key] = _parse(value)
                variables[section, key] = name
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        wrong: dict[str, list[str]] = {}
        for each in error.errors():
            wrong.setdefault(variables.get(each["loc"][:2], str(path)), []).append(_wrong(each))
        told = "; ".join(f"in {source}: {'; '.join(lines)}" for source, lines in wrong.items())
        raise SettingsError(f"wrong settings {told}") from error


@contextmanager
def ending_when_wrong() -> Iterator[None]:
    """For a process's entry: wrong settings inside the block are one line on standard error and `WRONG_SETTINGS`."""
    try:
        yield
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(WRONG_SETTINGS)


def _read(path: Path, *, must_exist: bool) -> dict[str, Any]:
    """The file; without one that nobody named, the defaults."""
    try:
        if path.exists():
            return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise SettingsError(f"{path} is nested too deeply") from error
    except ValueError as error:  # Python converts no longer ones
        raise SettingsError(f"{path} has a number of too many digits") from error
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}") from error
    if must_exist:
        raise SettingsError(f"{_ENV_CONFIG} names {path}, which does not exist")
    return {}


def is_secret(field: FieldInfo) -> bool:
    """Is it a setting that only the environment may hold?"""
    return field.annotation == SecretStr | None


def _refuse_secrets(path: Path, data: dict[str, Any]) -> None:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        given = data.get(name)
        if isinstance(section, type) and issubclass(section, BaseModel) and isinstance(given, dict):
            for key in given:
                if key in section.model_fields and is_secret(section.model_fields[key]):
                    variable = f"{_ENV_PREFIX}{name}__{key}".upper()
                    raise SettingsError(f"{path}: {name}.{key} is a secret: set {variable} instead, and delete it here")


def _wrong(error: ErrorDetails) -> str:
    """What is wrong with one key, and what is expected there. Never the value: it may be a secret in a wrong place."""
    loc = error["loc"]
    name = ".".join(key if (key := str(part)).isprintable() else ascii(key)[1:-1] for part in loc)
    if error["type"] == "extra_forbidden":
        known = _keys_of(loc[:-1])
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        return f"{name} is not known " + (f"(did you mean {close[0]}?)" if close else f"(there are {', '.join(known)})")
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] in ("model_type", "dict_type"):
        return f"{name} must be a section, [{name}]"
    return f"{name}: {error['msg'].removeprefix('Value error, ')}"


def _keys_of(section: Sequence[int | str]) -> list[str]:
    """The keys that a section, named by its place, may have."""
    kind: Any = Settings
    for step in section:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(step)].annotation
        else:
            kind = get_args(kind)[-1]  # a named section, or one of a list
    return list(kind.model_fields)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's configuration, read once."""
    return read_settings()


def _parse(value: str) -> Any:
    """Environment values are written as TOML values; anything else is a plain string."""
    try:
        return tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return value
