"""Anthropic's SDK: messages, thinking, streams, the tool runner with and without threads, errors."""

from anthropic import Anthropic, beta_tool
from common import ANTHROPIC_MODEL, CITY, NEXT, SYSTEM, get_time, get_weather, main, question, run_tool, scenario

client = Anthropic()
TOOLS = [
    {"name": "get_weather", "description": "The weather in a city.", "input_schema": CITY},
    {"name": "get_time", "description": "The time of day.", "input_schema": {"type": "object"}},
]
MARKED = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]


def loop(messages, ask):
    got = []
    while True:
        message, seen = ask(messages)
        got.append(seen)
        messages.append({"role": "assistant", "content": message.model_dump(exclude_none=True)["content"]})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return got
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": run_tool(call.name, call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


def whole(**more):
    def ask(messages):
        message = client.messages.create(
            model=ANTHROPIC_MODEL, max_tokens=2048, system=SYSTEM, messages=messages, tools=TOOLS, **more
        )
        return message, {"message": message, "request_id": message._request_id}

    return ask


def streamed(messages):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(
        model=ANTHROPIC_MODEL, max_tokens=2048, system=MARKED, messages=messages, tools=TOOLS, thinking=thinking
    ) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_message()
    return message, {"message": message, "events": events}


def two_turns(name, ask):
    messages = [{"role": "user", "content": question(name)}]
    got = loop(messages, ask)
    messages.append({"role": "user", "content": NEXT})
    return got + loop(messages, ask)


@scenario
def messages_plain():
    return two_turns("messages_plain", whole())


@scenario
def messages_thinking():
    return two_turns("messages_thinking", whole(thinking={"type": "enabled", "budget_tokens": 1024}))


@scenario
def messages_stream():
    return two_turns("messages_stream", streamed)


@scenario
def messages_429():
    return loop([{"role": "user", "content": question("messages_429", " [429]")}], whole())


@scenario
def messages_400():
    return loop([{"role": "user", "content": question("messages_400", " [400]")}], whole())


@scenario
def messages_cut():
    return loop([{"role": "user", "content": question("messages_cut", " [cut]")}], streamed)


@scenario
def tool_runner_thread():
    """Threads: the tools' results go on from an answer's id, without the history."""
    runner = client.beta.messages.tool_runner(
        model=ANTHROPIC_MODEL,
        max_tokens=256,
        messages=[{"role": "user", "content": question("tool_runner_thread")}],
        tools=[beta_tool(get_weather), beta_tool(get_time)],
    )
    return list(runner)


if __name__ == "__main__":
    main()
