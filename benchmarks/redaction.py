"""`python -m benchmarks.redaction`: what redaction costs an exchange, what it finds, what it finds wrongly.

An exchange is a user message, a model call and a tool result with about 3 kB of new text, taken from real
trajectories; every text is new to the governor, so nothing comes out of its memory. Times are CPU times of
the one thread that does it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator

from atdp import clock
from atdp.records import Action, EventDraft, Message, Metadata, Observation, Outcome, Part, Tokens
from registry.keyring import TenantKeys
from services.proxy.governor import Governor
from tests.governance.drafting import Governance, call, opened, said
from tests.redaction.corpus import SHARED, benign, planted, redactor, told

_EXCHANGES = 400
_TIMES = 3
"""Each exchange is measured so often, by a governor that never saw it; the least counts: others use the machine too."""
_SEAL_EVERY = 4
"""One exchange of so many holds an address: it is redacted, its originals and token ids sealed."""


def texts() -> Iterator[tuple[str, str, str]]:
    """(user's words, answer, tool result): about 3 kB in all."""
    path = SHARED / "data/tau2-retail/gpt-4.1_retail.json"
    if not path.is_file():
        raise SystemExit(f"no real conversations in {path}: EVOPLANE_SHARED names the folder that has them (AGENTS.md)")
    simulations = json.loads(path.read_text())["simulations"]
    words: dict[str, list[str]] = {"user": [], "assistant": [], "tool": []}
    for simulation in simulations:
        for message in simulation["messages"]:
            if isinstance(message.get("content"), str) and message["role"] in words:
                words[message["role"]].append(message["content"])
    results = [text.replace("@", " at ") for text in words["tool"] if len(text) > 300]
    for index in range(_EXCHANGES):
        user = words["user"][index % len(words["user"])] + f" ({index})"
        answer = "\n".join(words["assistant"][(index * 3 + k) % len(words["assistant"])] for k in range(3))
        result = results[index % len(results)]
        yield user, answer[:1500], (result * 4)[: max(200, 3000 - len(user) - len(answer[:1500]))]


def exchanges() -> Iterator[list[EventDraft]]:
    tokens = Tokens(prompt_token_ids=list(range(700)), completion_token_ids=list(range(300)), logprobs=[-0.5] * 300)
    for index, (user, answer, result) in enumerate(texts()):
        user += " anna.berg@example.com" if index % _SEAL_EVERY == 0 else ""
        tool = EventDraft(
            atdp="1.0", id=f"t{index}", trajectory_id=f"tr{index}", kind="tool_call", time=clock.now(),
            ctx=call().ctx, a=Action(name="look", call_id=f"call_{index}", arguments={"id": f"#W{index:07d}"}),
            y=Outcome(status="ok", result=result), m=Metadata(tags={"agent": "support"}),
        )  # fmt: skip
        asked = Observation(messages=[said(user), Message(role="tool", parts=[Part(type="text", content="see above")])])
        yield [
            tool,
            call(f"e{index}", trajectory=f"tr{index}", o=asked, a=Action(messages=[said(answer, role="assistant")]),
                 tokens=tokens),
        ]  # fmt: skip


def main() -> None:
    keys = {"a": TenantKeys("a", {1: b"k" * 32})}
    governors = [Governor(lambda: Governance(tenant_keys=keys)) for _ in range(_TIMES)]
    clean: list[float] = []
    dirty: list[float] = []
    size = 0
    for governor in governors:
        governor.protect("a", [opened("warm"), call(text="anna@example.com 4111111111111111", trajectory="warm")])
    for index, ((user, answer, result), drafts) in enumerate(zip(texts(), exchanges(), strict=True)):
        size += len(user) + len(answer) + len(result)
        header = opened(f"tr{index}")
        took = []
        for governor in governors:
            started = time.thread_time()
            governor.protect("a", [header, *drafts])
            took.append((time.thread_time() - started) * 1e6)
        (clean if index % _SEAL_EVERY else dirty).append(min(took))
    rules = redactor()
    found = [not told(c.secret, json.dumps(rules.redact(c.record).record, ensure_ascii=False)) for c in planted(each=3)]
    wrong = [rules.redact({"y": {"result": text}}).changed for _, text in benign()]
    figures = {
        "exchange_us_p50": statistics.median(clean),
        "exchange_us_p99": statistics.quantiles(clean, n=100)[98],
        "sealed_exchange_us_p50": statistics.median(dirty),
        "kb_per_exchange": size / _EXCHANGES / 1000,
        "us_per_kb": sum(clean + dirty) / (size / 1000),
        "recall": sum(found) / len(found),
        "false_positive_rate": sum(wrong) / len(wrong),
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
