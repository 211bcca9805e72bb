"""smolagents: a tool-calling agent, planning beside it, streams, and a code agent, which offers no tools."""

from common import NEXT, OPENAI_MODEL, get_time, get_weather, main, question, scenario
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

TOOLS = [tool(get_weather), tool(get_time)]


def agent(**more):
    return ToolCallingAgent(tools=TOOLS, model=OpenAIModel(OPENAI_MODEL), verbosity_level=0, **more)


def steps(desk):
    kept = []
    for step in desk.memory.steps:
        calls = [[call.id, call.name, call.arguments] for call in getattr(step, "tool_calls", None) or ()]
        usage = getattr(step, "token_usage", None)
        kept.append([type(step).__name__, calls, getattr(step, "observations", None), usage and usage.dict()])
    return kept


def seen(desk, *outputs):
    return [list(outputs), steps(desk)]


@scenario
def smolagents_tools():
    desk = agent()
    first = desk.run(question("smolagents_tools"))
    second = desk.run(NEXT, reset=False)
    return seen(desk, first, second)


@scenario
def smolagents_stream():
    desk = agent(stream_outputs=True)
    events = [type(event).__name__ for event in desk.run(question("smolagents_stream"), stream=True)]
    return seen(desk, events)


@scenario
def smolagents_planned():
    desk = agent(planning_interval=2)
    return seen(desk, desk.run(question("smolagents_planned")))


@scenario
def smolagents_429():
    desk = agent()
    return seen(desk, desk.run(question("smolagents_429", " [429]")))


@scenario
def smolagents_400():
    return agent().run(question("smolagents_400", " [400]"))


@scenario
def smolagents_code():
    desk = CodeAgent(tools=TOOLS, model=OpenAIModel(OPENAI_MODEL), verbosity_level=0, max_steps=2)
    return seen(desk, desk.run(question("smolagents_code")))


if __name__ == "__main__":
    main()
