"""Frameworks against a real, small model: greedy, a few tokens, a tool that it must call."""

import os

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from anthropic import Anthropic
from common import CITY, get_weather, main, scenario
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel

MODEL = os.environ["CONTRACT_MODEL"]
TOKENS = 16
SYSTEM = "You answer briefly."
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY}
GREEDY = {"temperature": 0}
"""Anthropic's SDK has no word for it any more."""
TOOL = {"type": "function", "function": FUNCTION}


def ask(name):
    return f"{name}: What is the weather in Paris?"


def messages(name):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ask(name)}]


def words(message):
    calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]
    return {"text": message.content, "calls": calls}


@scenario
def chat():
    """A required call, its result, and the answer to it."""
    said, settings = messages("chat"), {"model": MODEL, "temperature": 0, "max_tokens": 120, "tools": [TOOL]}
    first = OpenAI().chat.completions.create(messages=said, tool_choice="required", **settings)
    message = first.choices[0].message
    said.append(message.model_dump(exclude_none=True))
    said += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    second = OpenAI().chat.completions.create(messages=said, tool_choice="none", **settings)
    return [[words(each.choices[0].message), each.choices[0].finish_reason, each.usage] for each in (first, second)]


@scenario
def chat_stream():
    stream = OpenAI().chat.completions.create(
        model=MODEL,
        temperature=0,
        max_tokens=TOKENS,
        messages=messages("chat_stream"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    deltas = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    return [deltas, chunks[-1].usage, sorted({choice.finish_reason or "" for c in chunks for choice in c.choices})]


@scenario
def responses():
    response = OpenAI().responses.create(
        model=MODEL, instructions=SYSTEM, input=ask("responses"), temperature=0, max_output_tokens=TOKENS
    )
    return [response.output_text, response.status, response.usage]


@scenario
def anthropic():
    message = Anthropic().messages.create(
        model=MODEL,
        max_tokens=TOKENS,
        extra_body=GREEDY,
        system=SYSTEM,
        messages=[{"role": "user", "content": ask("anthropic")}],
    )
    return [message.content, message.stop_reason, message.usage.input_tokens, message.usage.output_tokens]


@scenario
def anthropic_stream():
    with Anthropic().messages.stream(
        model=MODEL,
        max_tokens=TOKENS,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": ask("anthropic_stream")}],
    ) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_message()
    return [events, message.content, message.stop_reason, message.usage.output_tokens]


@scenario
def langchain():
    model = ChatOpenAI(model=MODEL, temperature=0, max_tokens=120).bind_tools([tool(get_weather)], tool_choice="any")
    message = model.invoke([("system", SYSTEM), ("user", ask("langchain"))])
    calls = [[call["name"], call["args"]] for call in message.tool_calls]
    return [message.content, calls, message.usage_metadata]


@scenario
def pydantic_ai():
    agent = PydanticAgent(OpenAIChatModel(MODEL), instructions=SYSTEM)
    result = agent.run_sync(ask("pydantic_ai"), model_settings={"temperature": 0, "max_tokens": TOKENS})
    return [result.output, result.usage.input_tokens, result.usage.output_tokens]


async def agents(name, model, tokens=TOKENS, **more):
    settings = ModelSettings(temperature=0, max_tokens=tokens)
    agent = Agent(name="Desk", instructions=SYSTEM, model=model, model_settings=settings, **more)
    result = await Runner.run(agent, ask(name), max_turns=1)
    usage = result.context_wrapper.usage
    return [result.final_output, usage.input_tokens, usage.output_tokens]


@scenario
async def agents_chat():
    return await agents(
        "agents_chat", OpenAIChatCompletionsModel(MODEL, AsyncOpenAI()), tools=[function_tool(get_weather)]
    )


@scenario
async def agents_responses():
    # the framework takes an answer that is cut by its length for an error: let it end by itself
    return await agents("agents_responses", OpenAIResponsesModel(MODEL, AsyncOpenAI()), tokens=200)


if __name__ == "__main__":
    main()
