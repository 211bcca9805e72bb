"""What OpenAI's dialects have in common: the form of their errors."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects.base import Dialect, Problem


class OpenAIDialect(Dialect):
    def error_body(self, problem: Problem) -> dict[str, Any]:
        return {
            "error": {
                "message": problem.message,
                "type": problem.type,
                "param": problem.param,
                "code": problem.code,
            }
        }
