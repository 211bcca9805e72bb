"""What the gateway itself refuses or can't do; each dialect has its own form for it."""

from __future__ import annotations

import re

from services.proxy.dialects.base import Problem
from services.proxy.drafts import StoreUnavailable
from services.proxy.protection import Blocked


class ApiError(Exception):
    """An answer that is an error; the message says what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, type, param, code)
        self.status = status
        self.code = code
        self.headers = headers


_RETRY_AFTER = ((b"retry-after", b"1"),)


_WORD = re.compile(r"[\w\-./+=~:@%]*\Z")


def beginning(body: bytes, most_bytes: int = 20_000) -> str:
    """The beginning of what a server has said, without the word it is cut in: nothing would know half a secret."""
    text = body[:most_bytes].decode(errors="replace")
    return text if len(body) <= most_bytes else _WORD.sub("", text)


def unauthorized() -> ApiError:
    """The same words for a missing, a wrong and a revoked key."""
    return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")


def forbidden(scope: str) -> ApiError:
    return ApiError(403, f"This key has no {scope!r} scope.", type="permission_error", code="missing_scope")


def malformed(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def too_deep(levels: int) -> ApiError:
    return ApiError(400, f"The request is nested too deeply: {levels} levels at most.", code="nested_too_deeply")


def too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than {limit} bytes (setting gateway.max_body_bytes).",
        code="request_too_large",
    )


def unknown_model(model: str, known: list[str], patterns: list[str]) -> ApiError:
    """`patterns` are of names that upstreams would take, such as `gpt-*`."""
    matching = f", and whatever matches {', '.join(patterns)}" if patterns else ""
    return ApiError(
        404,
        f"The model {model!r} does not exist for this key. Known: {', '.join(known)}{matching}.",
        param="model",
        code="model_not_found",
    )


def not_recording() -> ApiError:
    """Nothing is served that can't be recorded: an answer given is an answer stored."""
    return ApiError(
        503,
        "The event log can't be written, so nothing is served; try again shortly. See `evoplane doctor`.",
        type="server_error",
        code="event_log_unavailable",
        headers=_RETRY_AFTER,
    )


def not_redacted() -> ApiError:
    """Trying again would fail again, and ask the model again."""
    return ApiError(
        503,
        "What had to be recorded could not be redacted, and the tenant's policy refuses that (`on_failure`).",
        type="server_error",
        code="redaction_failed",
        headers=((b"x-should-retry", b"false"),),
    )


def unrecorded(why: StoreUnavailable) -> ApiError:
    """What a client is told whose record was refused."""
    return not_redacted() if isinstance(why, Blocked) else not_recording()


def over_budget(limit: str, of: str, retry_after_s: int) -> ApiError:
    """The tenant's or the key's own limit, not the provider's; clients wait as long as the header says."""
    return ApiError(
        429,
        f"The {of}'s budget {limit} is used up; try again in {retry_after_s} s (`evoplane tenant policy show`).",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=((b"retry-after", b"%d" % retry_after_s),),
    )


def rollouts_wait(why: str, retry_after_s: int) -> ApiError:
    """Training wants no more rollouts now; told only to a client that said it serves nothing else."""
    return ApiError(
        429,
        f"No rollout is needed now: {why}; try again in {retry_after_s} s.",
        type="rate_limit_error",
        code="rollouts_wait",
        headers=((b"retry-after", b"%d" % retry_after_s),),
    )


def upstream_unreachable(whom: str, reason: str) -> ApiError:
    """`whom` names the server behind the gateway and says where it is; `reason` is what the system said."""
    return ApiError(
        503,
        f"{whom} can't be reached: {reason}.",
        type="server_error",
        code="upstream_unreachable",
        headers=_RETRY_AFTER,
    )


def upstream_broken(whom: str, reason: str) -> ApiError:
    return ApiError(502, f"{whom} broke off its answer: {reason}.", type="server_error", code="upstream_broken")


def upstream_timeout(whom: str, seconds: float) -> ApiError:
    return ApiError(
        504,
        f"{whom} did not answer within {seconds:g} s (setting gateway.upstream_timeout_s).",
        type="server_error",
        code="upstream_timeout",
    )


def previous_unknown(id: str, code: str) -> ApiError:
    """The same for an answer that never was and for another tenant's."""
    return ApiError(404, f"Previous response with id {id!r} not found.", param="previous_response_id", code=code)


def name_unknown(id: str) -> ApiError:
    """The same for what never was and for what is another tenant's."""
    return ApiError(404, f"{id!r} not found. It must be named by an earlier answer to this tenant.", code="not_found")


def not_spoken(dialect: str, upstream: str) -> ApiError:
    return ApiError(
        404,
        f"The upstream {upstream!r} does not speak {dialect} (settings upstreams.{upstream}.dialects and"
        f" upstreams.{upstream}.translate).",
        code="dialect_not_supported",
    )


def stream_truncated(reason: str) -> ApiError:
    return ApiError(
        502, f"The answer was cut short: {reason}. It is not complete.", type="server_error", code="stream_truncated"
    )


def internal() -> ApiError:
    return ApiError(500, "The gateway failed; its log says why.", type="server_error", code="internal_error")
