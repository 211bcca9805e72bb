"""The official MCP client in both eras of the protocol, and an agent whose tools are a server's."""

import json
import os

import httpx2
from common import OPENAI_MODEL, main, question, scenario
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

URL = os.environ["MCP_URL"]
HEADERS = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}


async def note(work):
    try:
        value = (await work).model_dump(mode="json")
        value.pop("meta", None)
        return value
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def everything(mode):
    progress = []

    async def on_progress(done, total, message):
        progress.append([done, total])

    async with (
        httpx2.AsyncClient(headers=HEADERS, timeout=10) as http,
        Client(streamable_http_client(URL, http_client=http), mode=mode) as client,
    ):
        return [
            await note(client.list_tools()),
            await note(client.call_tool("get_weather", {"city": "Paris"})),
            await note(client.call_tool("get_time", {})),
            await note(client.call_tool("get_weather", {})),
            await note(client.call_tool("nothing", {})),
            await note(client.call_tool("slow", {}, progress_callback=on_progress)),
            await note(client.call_tool("fail", {})),
            await note(client.read_resource("desk://greeting")),
            await note(client.get_prompt("review", {"code": "x"})),
            progress,
        ]


@scenario
async def mcp_modern():
    return await everything("auto")


@scenario
async def mcp_legacy():
    return await everything("legacy")


@scenario
async def mcp_agent():
    """The model's tool calls are carried out by the server, behind the same gateway."""
    model, got = AsyncOpenAI(), []
    messages = [{"role": "user", "content": question("mcp_agent")}]
    async with (
        httpx2.AsyncClient(headers=HEADERS, timeout=10) as http,
        Client(streamable_http_client(URL, http_client=http)) as client,
    ):
        listed = (await client.list_tools()).tools
        functions = [{"name": t.name, "description": t.description, "parameters": t.input_schema} for t in listed]
        tools = [{"type": "function", "function": function} for function in functions]
        while True:
            completion = await model.chat.completions.create(model=OPENAI_MODEL, messages=messages, tools=tools)
            message = completion.choices[0].message
            got.append(message)
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return got
            for call in message.tool_calls:
                result = await client.call_tool(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.content[0].text})


if __name__ == "__main__":
    main()
