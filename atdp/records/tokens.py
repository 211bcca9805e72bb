"""The token block of a model call: exactly what the model got and gave."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from atdp.records.common import PartOfRecord

Ids = (
    list[int]
    | Annotated[
        dict[str, Any],
        Meta(
            description="{prefix, append}: the prompt ids of call `prefix`, then its completion ids, then "
            "`append`; {ref} or {sealed, commit}: kept apart; {redacted}: removed",
            extra_json_schema={
                "anyOf": [
                    {"required": ["prefix", "append"]},
                    {"required": ["ref"]},
                    {"required": ["sealed", "commit"]},
                    {"required": ["redacted"]},
                ]
            },
        ),
    ]
)


Logprobs = (
    list[float]
    | Annotated[
        dict[str, Any],
        Meta(
            description="{ref} or {sealed, commit}: kept apart; {redacted}: removed",
            extra_json_schema={
                "anyOf": [{"required": ["ref"]}, {"required": ["sealed", "commit"]}, {"required": ["redacted"]}]
            },
        ),
    ]
)


class Tokens(PartOfRecord, frozen=True):
    """Exactly what the model got and gave, as the server reported it; nothing is re-tokenised."""

    prompt_token_ids: Ids | UnsetType = UNSET
    completion_token_ids: Ids | UnsetType = UNSET
    logprobs: Logprobs | UnsetType = UNSET
    policy_versions: list[tuple[int, int | str]] | UnsetType = UNSET
    """Run lengths [count, version] over the completion."""
