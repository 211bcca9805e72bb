"""LangChain's agents on LangGraph: OpenAI's chat and Responses, Anthropic's messages; threads of its own memory."""

from common import ANTHROPIC_MODEL, NEXT, OPENAI_MODEL, SYSTEM, get_time, get_weather, main, question, scenario
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

TOOLS = [tool(get_weather), tool(get_time)]


def agent(model=f"openai:{OPENAI_MODEL}", **more):
    chat = init_chat_model(model, **more)
    return create_agent(chat, TOOLS, system_prompt=SYSTEM, checkpointer=InMemorySaver())


def seen(messages):
    """Messages without the ids that LangChain makes up."""
    dumped = [message.model_dump(mode="json") for message in messages]
    for message in dumped:
        if message["type"] != "ai" or message["id"].startswith("lc_run"):
            del message["id"]
    return dumped


def ask(graph, thread, text):
    state = graph.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
    return seen(state["messages"])


def two_turns(name, graph):
    ask(graph, name, question(name))
    return ask(graph, name, NEXT)


def streamed(name, graph):
    place = {"configurable": {"thread_id": name}}
    given = {"messages": [("user", question(name))]}
    chunks = [chunk for chunk, _ in graph.stream(given, place, stream_mode="messages")]
    spoken = [str(chunk.content) for chunk in chunks if chunk.type != "tool"]
    results = sorted(chunk.content for chunk in chunks if chunk.type == "tool")  # tools run side by side
    return [spoken, results, seen(graph.get_state(place).values["messages"])]


@scenario
def langgraph_chat():
    return two_turns("langgraph_chat", agent())


@scenario
def langgraph_chat_stream():
    return streamed("langgraph_chat_stream", agent())


@scenario
def langgraph_responses():
    return two_turns("langgraph_responses", agent(use_responses_api=True))


@scenario
def langgraph_responses_previous_id():
    graph = agent(use_responses_api=True, use_previous_response_id=True)
    return two_turns("langgraph_responses_previous_id", graph)


@scenario
def langgraph_responses_stream():
    return streamed(
        "langgraph_responses_stream", agent(use_responses_api=True, include=["reasoning.encrypted_content"])
    )


@scenario
def langgraph_anthropic():
    return two_turns("langgraph_anthropic", agent(f"anthropic:{ANTHROPIC_MODEL}"))


@scenario
def langgraph_anthropic_stream():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    return streamed(
        "langgraph_anthropic_stream", agent(f"anthropic:{ANTHROPIC_MODEL}", thinking=thinking, max_tokens=2048)
    )


@scenario
def langgraph_429():
    return ask(agent(), "langgraph_429", question("langgraph_429", " [429]"))


@scenario
def langgraph_400():
    return ask(agent(), "langgraph_400", question("langgraph_400", " [400]"))


if __name__ == "__main__":
    main()
