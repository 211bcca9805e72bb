"""OpenAI's agents SDK: Responses and chat, its own sessions, streams, hand-offs, an agent as a tool."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
from common import NEXT, OPENAI_MODEL, SYSTEM, get_time, get_weather, main, question, scenario
from openai import AsyncOpenAI

TOOLS = [function_tool(get_weather), function_tool(get_time)]


def agent(**more):
    return Agent(**{"name": "Desk", "instructions": SYSTEM, "model": OPENAI_MODEL, "tools": TOOLS, **more})


def chat_model():
    return OpenAIChatCompletionsModel(OPENAI_MODEL, AsyncOpenAI())


def seen(result):
    usage = result.context_wrapper.usage
    return {
        "output": result.final_output,
        "items": result.to_input_list(),
        "responses": [response.response_id for response in result.raw_responses],
        "usage": [usage.requests, usage.input_tokens, usage.output_tokens],
        "last": result.last_agent.name,
    }


async def two_turns(name, desk):
    session = SQLiteSession(name)
    first = await Runner.run(desk, question(name), session=session)
    second = await Runner.run(desk, NEXT, session=session)
    return [seen(first), seen(second)]


async def streamed(name, desk):
    result = Runner.run_streamed(desk, question(name))
    events = [event.type async for event in result.stream_events()]
    return [seen(result), events]


@scenario
async def agents_responses():
    return await two_turns("agents_responses", agent())


@scenario
async def agents_chat():
    return await two_turns("agents_chat", agent(model=chat_model()))


@scenario
async def agents_stream():
    return await streamed("agents_stream", agent())


@scenario
async def agents_chat_stream():
    return await streamed("agents_chat_stream", agent(model=chat_model()))


@scenario
async def agents_previous_id():
    first = await Runner.run(agent(), question("agents_previous_id"), auto_previous_response_id=True)
    second = await Runner.run(agent(), NEXT, previous_response_id=first.last_response_id)
    return [seen(first), seen(second)]


@scenario
async def agents_handoff():
    expert = agent(name="Expert", instructions="You know Rome.", handoff_description="Knows Rome")
    triage = agent(name="Triage", instructions="Hand over to who knows.", tools=[], handoffs=[expert])
    return seen(await Runner.run(triage, question("agents_handoff", " [specialist]")))


@scenario
async def agents_subagent():
    tool = agent(name="Helper").as_tool("ask_helper", "Knows the weather")
    boss = agent(name="Boss", instructions="Ask your helper.", tools=[tool])
    return seen(await Runner.run(boss, question("agents_subagent", " [specialist]")))


@scenario
async def agents_429():
    return seen(await Runner.run(agent(), question("agents_429", " [429]")))


@scenario
async def agents_400():
    return seen(await Runner.run(agent(), question("agents_400", " [400]")))


if __name__ == "__main__":
    main()
