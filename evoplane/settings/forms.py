"""What single settings look like. A refusal never has the value in it: it may be a secret in a wrong place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NOT_IN_AN_ADDRESS = re.compile(r"[\s\x00-\x1f\x7f]")


def _http_url(value: str) -> str:
    """`value`, if requests can be sent there; else what is wrong would be told with each of them, password and all."""
    from yarl import URL  # what sends requests reads them with it; not for those who configure no URL

    if _NOT_IN_AN_ADDRESS.search(value):
        raise ValueError("a URL has no spaces and no control characters")
    if not re.match("https?://", value, re.IGNORECASE):
        raise ValueError("must be a URL that begins with http:// or https://")
    try:
        host, port = URL(value).host or "", urlsplit(value).port
        host.encode("idna")
    except ValueError:
        raise ValueError(
            "is no URL: its host or its port can't be read (#, /, ? and @ in a password are percent-encoded)"
        ) from None
    if not host or port == 0:
        raise ValueError("is no URL: it has no host, or port 0")
    if "#" in value:
        raise ValueError("a URL to ask has no #; one in a password is written %23")
    return value


def place_of(url: str) -> str:
    """How a URL that was read from the settings is told: without its password, and what else it may hold."""
    parsed = urlsplit(url)
    return f"{parsed.scheme}://{parsed.netloc.rpartition('@')[2]}{parsed.path}"


def _http_url_or_empty(value: str) -> str:
    return value and _http_url(value)


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable (letters, digits and _, 64 at most), not what it holds"
        )
    return value


def _variable_or_empty(value: str) -> str:
    return value and _variable(value)


def _folder(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("a path has no NUL character")
    return value


def _host(value: str) -> str:
    if not value or _NOT_IN_AN_ADDRESS.search(value):
        raise ValueError("must be a host's name or address")
    return value


HttpUrl = Annotated[str, AfterValidator(_http_url)]
HttpUrlOrEmpty = Annotated[str, AfterValidator(_http_url_or_empty)]
Variable = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable that holds a secret."""
VariableOrEmpty = Annotated[str, AfterValidator(_variable_or_empty)]
Folder = Annotated[Path, AfterValidator(_folder)]
Host = Annotated[str, AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=65535)]
