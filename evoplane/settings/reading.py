"""Reading the configuration: the file, the environment over it, and every wrong key named."""

from __future__ import annotations

import os
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from evoplane.settings.deployment import Settings


class SettingsError(Exception):
    """The configuration is wrong; the message names the key and where it came from."""


_ENV_PREFIX = "EVOPLANE_"
_ENV_CONFIG = "EVOPLANE_CONFIG"


def read_settings(file: Path | None = None, environ: dict[str, str] | None = None) -> Settings:
    """Read and check the configuration; raises `SettingsError` naming every wrong key."""
    env = dict(os.environ) if environ is None else environ
    path = file or Path(env.get(_ENV_CONFIG, "evoplane.toml"))
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text()) if path.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
    _refuse_secrets(path, data)
    for name, value in env.items():
        if name.startswith(_ENV_PREFIX) and "__" in name:
            section, _, key = name.removeprefix(_ENV_PREFIX).lower().partition("__")
            data.setdefault(section, {})[key] = _parse(value)
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"wrong settings ({path} and EVOPLANE_…): " + "; ".join(lines)) from error


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


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's configuration, read once."""
    return read_settings()


def _parse(value: str) -> Any:
    """Environment values are written as TOML values; anything else is a plain string."""
    try:
        return tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return value
