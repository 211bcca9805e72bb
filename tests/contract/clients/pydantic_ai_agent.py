"""Pydantic AI: OpenAI's Responses and chat, Anthropic's messages; history handed from turn to turn."""

from common import ANTHROPIC_MODEL, NEXT, OPENAI_MODEL, SYSTEM, get_time, get_weather, main, question, scenario
from pydantic import BaseModel
from pydantic_ai import Agent


class Weather(BaseModel):
    summary: str
    degrees: int


def agent(model=f"openai:{OPENAI_MODEL}", **more):
    return Agent(model, instructions=SYSTEM, tools=[get_weather, get_time], **more)


def seen(result):
    usage = result.usage
    parts = [[p.part_kind, getattr(p, "content", None), getattr(p, "tool_call_id", None), getattr(p, "args", None)]
             for message in result.all_messages() for p in message.parts]  # fmt: skip
    ids = [getattr(message, "provider_response_id", None) for message in result.all_messages()]
    return {"output": result.output, "parts": parts, "ids": ids, "usage": [usage.input_tokens, usage.output_tokens]}


def two_turns(name, desk):
    first = desk.run_sync(question(name))
    second = desk.run_sync(NEXT, message_history=first.all_messages())
    return [seen(first), seen(second)]


async def streamed(name, desk):
    async with desk.run_stream(question(name)) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    usage = result.usage
    return [pieces, usage.input_tokens, usage.output_tokens]


@scenario
def pydantic_responses():
    return two_turns("pydantic_responses", agent())


@scenario
async def pydantic_responses_stream():
    return await streamed("pydantic_responses_stream", agent())


@scenario
def pydantic_chat():
    return two_turns("pydantic_chat", agent(f"openai-chat:{OPENAI_MODEL}"))


@scenario
async def pydantic_chat_stream():
    return await streamed("pydantic_chat_stream", agent(f"openai-chat:{OPENAI_MODEL}"))


@scenario
def pydantic_anthropic():
    return two_turns("pydantic_anthropic", agent(f"anthropic:{ANTHROPIC_MODEL}"))


@scenario
async def pydantic_anthropic_stream():
    return await streamed("pydantic_anthropic_stream", agent(f"anthropic:{ANTHROPIC_MODEL}"))


@scenario
def pydantic_structured():
    return seen(agent(f"openai-chat:{OPENAI_MODEL}", output_type=Weather).run_sync(question("pydantic_structured")))


@scenario
def pydantic_429():
    return seen(agent().run_sync(question("pydantic_429", " [429]")))


@scenario
def pydantic_400():
    return seen(agent().run_sync(question("pydantic_400", " [400]")))


if __name__ == "__main__":
    main()
