"""Token-exact capture from our worker, invisible to the client.

The upstream is asked for token ids, log-probabilities and usage; what the client did not ask for
is taken out of the reply again, so that its bytes are those it would have got. The forms are vLLM's:
with log-probabilities it also sends chunks whose delta is empty (a tool parser is buffering);
without, it would not have sent them.
"""

from __future__ import annotations

from typing import Any

import orjson

from services.proxy.sse import ServerSentEvent


class TokenCapture:
    """What was added to one request, and how to take it out of the reply."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._asked_ids = request.get("return_token_ids") is True
        self._asked_logprobs = request.get("logprobs") is True
        options = request.get("stream_options")
        self._options = options if isinstance(options, dict) else {}
        self._asked_usage = self._options.get("include_usage") is True
        self._asked_model = request.get("model")
        self._streams = request.get("stream") is True
        # of several choices each last chunk carries the fingerprint, which could not be put back in time
        self._adds_usage = self._streams and not self._asked_usage and request.get("n") in (None, 1)
        self._held: tuple[ServerSentEvent, dict[str, Any]] | None = None

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with token ids, log-probabilities and usage asked for."""
        asked = {**request, "return_token_ids": True, "logprobs": True}
        if self._adds_usage:
            asked["stream_options"] = {**self._options, "include_usage": True}
        return asked

    def body(self, body: dict[str, Any]) -> bytes:
        """A whole reply as the client would have got it."""
        return orjson.dumps(self._cleaned(body))

    def event(self, event: ServerSentEvent, chunk: dict[str, Any]) -> bytes:
        """A stream event as the client would have got it; empty when it would not have got it (yet).

        The last chunk of an answer is held until the next event: the usage chunk that was added
        after it carries the `system_fingerprint` that otherwise stands in it.
        """
        if not chunk.get("choices") and "usage" in chunk and self._adds_usage:
            return self.flush(chunk.get("system_fingerprint"))
        before = self.flush()
        if self._added_only(chunk):
            return before
        cleaned = self._cleaned(chunk)
        if self._adds_usage and any(c.get("finish_reason") is not None for c in chunk.get("choices") or ()):
            self._held = (event, cleaned)
            return before
        return before + event.with_data(orjson.dumps(cleaned))

    def flush(self, fingerprint: str | None = None) -> bytes:
        """The chunk being held, if any."""
        if self._held is None:
            return b""
        (event, chunk), self._held = self._held, None
        if fingerprint is not None and "system_fingerprint" not in chunk:
            chunk["system_fingerprint"] = fingerprint
        return event.with_data(orjson.dumps(chunk))

    def _added_only(self, chunk: dict[str, Any]) -> bool:
        choices = chunk.get("choices")
        if self._asked_logprobs or not choices:
            return False
        return all(c.get("delta") == {} and c.get("finish_reason") is None for c in choices)

    def _cleaned(self, body: dict[str, Any]) -> dict[str, Any]:
        cleaned = dict(body)
        if cleaned.get("model") is not None and self._asked_model is not None:
            cleaned["model"] = self._asked_model
        if self._adds_usage:
            cleaned.pop("usage", None)
        if not self._asked_ids and "prompt_token_ids" in cleaned:
            cleaned["prompt_token_ids"] = None
        if isinstance(cleaned.get("choices"), list):
            cleaned["choices"] = [self._cleaned_choice(choice) for choice in cleaned["choices"]]
        return cleaned

    def _cleaned_choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        cleaned = dict(choice)
        if not self._asked_ids and "token_ids" in cleaned:
            cleaned["token_ids"] = None
        if not self._asked_logprobs and "logprobs" in cleaned:
            cleaned["logprobs"] = None
        return cleaned
