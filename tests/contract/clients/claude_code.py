"""Claude Code, headless, by its agent SDK: a tool server of our own, two turns of one session, a sub-agent."""

import os
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool
from common import ANTHROPIC_MODEL, CITY, NEXT, get_time, get_weather, main, question, scenario

NONESSENTIAL = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
"""A proxy that isn't there keeps the client from other hosts."""


def text(words):
    return {"content": [{"type": "text", "text": words}]}


@tool("get_weather", "The weather in a city.", CITY)
async def weather(arguments):
    return text(get_weather(**arguments))


@tool("get_time", "The time of day.", {"type": "object", "properties": {}})
async def time(arguments):
    return text(get_time())


def options(name, env, **more):
    server = create_sdk_mcp_server("desk", "1.0", [weather, time])
    folder = Path.home() / name
    folder.mkdir(exist_ok=True)
    return ClaudeAgentOptions(
        model=ANTHROPIC_MODEL,
        mcp_servers={"desk": server},
        allowed_tools=["mcp__desk__get_weather", "mcp__desk__get_time", "ToolSearch"],
        permission_mode="bypassPermissions" if os.getuid() else "acceptEdits",
        setting_sources=[],
        cwd=folder,
        env={"CLAUDE_CONFIG_DIR": str(Path.home() / f"{name}-config"), **env},
        max_turns=8,
        **more,
    )


async def turns(name, *questions, env=None, **more):
    """What is said and done, without the ids and times that Claude Code makes up."""
    got = []
    async with ClaudeSDKClient(options(name, env or {}, **more)) as client:
        for words in questions:
            await client.query(words)
            async for message in client.receive_response():
                kept = {"type": type(message).__name__, "content": getattr(message, "content", None)}
                if isinstance(message, ResultMessage):
                    usage = {k: v for k, v in message.usage.items() if k.endswith("_tokens")}
                    kept = {"result": message.result, "turns": message.num_turns, "usage": usage}
                    kept["error"] = message.is_error
                got.append(kept)
    return got


@scenario
async def claude_tools():
    """Two turns in one process, a third in another one that resumes the session."""
    session = str(uuid5(NAMESPACE_URL, "claude_tools"))
    first = await turns("claude_tools", question("claude_tools"), NEXT, extra_args={"session-id": session})
    return first + await turns("claude_tools", "And the time?", resume=session)


@scenario
async def claude_subagent():
    """One that the conversation waits for."""
    env = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
    return await turns("claude_subagent", question("claude_subagent", " [specialist]"), env=env)


@scenario
async def claude_title():
    """With what Claude Code calls non-essential: it asks for a title beside the conversation."""
    return await turns("claude_title", question("claude_title"), env=NONESSENTIAL)


@scenario
async def claude_429():
    return await turns("claude_429", question("claude_429", " [429]"))


@scenario
async def claude_400():
    """Claude Code reports an error as its result."""
    got = await turns("claude_400", question("claude_400", " [400]"))
    raise RuntimeError(got[-1]["result"])


if __name__ == "__main__":
    main()
