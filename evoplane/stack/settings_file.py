"""`evoplane.toml` as it is shipped: every setting with its default and what it means.

Rendered from `evoplane.settings`, so the two can't disagree; a test fails when the file is stale.
`python -m evoplane.stack.settings_file > evoplane.toml` renders it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evoplane.settings import Settings, is_secret

_HEAD = """\
# Evoplane's configuration: every setting with its default. Delete what you don't change.
# An environment variable EVOPLANE_<SECTION>__<KEY> overrides the file, e.g. EVOPLANE_GATEWAY__PORT=9000.
"""


_PEERS = """\
# Model providers beside the worker, one section each; keys come from the environment.
# [upstreams.anthropic]
# url = "https://api.anthropic.com"
# dialects = ["anthropic.messages"]
# models = ["claude-*"]
# key_env = "ANTHROPIC_API_KEY"

# A provider that speaks chat alone, and the dialects whose clients may reach it by translation.
# [upstreams.local]
# url = "http://127.0.0.1:8000"
# dialects = ["openai.chat"]
# translate = ["openai.responses", "anthropic.messages"]
# models = ["qwen-*"]

# Tool servers behind /mcp/<name>, one section each; what a header holds comes from the environment.
# [mcp.crm]
# url = "https://crm.example.com/mcp"
# headers = { authorization = "CRM_AUTHORIZATION" }
# effects = { refund = "irreversible" }

# Other agents behind /a2a/<name>.
# [a2a.billing]
# url = "https://billing.example.com/a2a"

# What models cost, by the name they are served under: cost per success is unknown without (docs/control-plane.md).
# [prices.smollm2-135m]
# input_per_million = 0.05
# output_per_million = 0.10

# Systems that are told of alerts, one section each.
# [alert_hooks.oncall]
# url = "https://oncall.example.com/evoplane"
# secret_env = "ONCALL_WEBHOOK_SECRET"

# Systems that post to /v1/feedback/webhooks/<name>, and what their messages mean (docs/feedback.md).
# [webhooks.helpdesk]
# scheme = "zendesk"
# secret_env = ["HELPDESK_WEBHOOK_SECRET"]
# tenant = "northwind"
# agent = "support"
# [[webhooks.helpdesk.rules]]
# when = { "/event/previous" = "solved", "/event/current" = "open" }
# name = "ticket_reopened"
# value = -1
# target_at = "/detail/external_id"

# What counts as an agent's reward (docs/rewards.md); without a section, what `resolved` says.
# [rewards.support]
# conflict = "latest"
# [[rewards.support.clauses]]
# name = "resolved"
# about = "trajectory"
# [[rewards.support.clauses]]
# name = "judge.*"
# kinds = ["llm_judge"]
# precedence = 1
# min_agreement = 0.7
"""


def render() -> str:
    """The whole file."""
    sections = [_section(name, section) for name, section in Settings() if isinstance(section, BaseModel)]
    return "\n".join([_HEAD, *sections, _PEERS])


def _section(name: str, section: BaseModel) -> str:
    lines = [f"[{name}]"]
    for key, field in type(section).model_fields.items():
        if is_secret(field):
            continue
        line = f"{key} = {_toml(getattr(section, key))}"
        lines.append(f"{line}  # {field.description}" if field.description else line)
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Strings, numbers, booleans and lists of them are written alike in TOML and JSON; None has no form."""
    return json.dumps(str(value) if isinstance(value, Path) else value)


if __name__ == "__main__":
    print(render(), end="")
