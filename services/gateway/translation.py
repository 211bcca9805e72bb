"""Where an upstream does not speak the client's dialect, and the operator has said that it may be translated."""

from __future__ import annotations

from typing import Any

from services.gateway.errors import ApiError
from services.gateway.upstream import Upstream
from services.proxy.dialects import Dialect
from services.proxy.translate import ENGINE_FIELDS, NotTranslatable, Translator, translator


def translated(
    upstream: Upstream, dialect: Dialect, asked: dict[str, Any], sent: dict[str, Any] | None = None
) -> Translator | None:
    """What translates between a client and an upstream, None where nothing has to.

    `asked` is the client's request, `sent` the same with overlays. Raises a 400 `ApiError` for what can't be said in
    the upstream's dialect.
    """
    if dialect.name not in upstream.translated:
        return None
    model = asked.get("model") if upstream.own else None
    also = ENGINE_FIELDS if upstream.own else frozenset()
    try:
        return translator(dialect, asked, asked if sent is None else sent, model=model, also=also)
    except NotTranslatable as error:
        raise ApiError(400, str(error), param=error.param, code=error.code) from error
