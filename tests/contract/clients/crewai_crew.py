"""CrewAI: crews and single agents on OpenAI's chat, streams, Anthropic's messages with their token counts."""

from common import ANTHROPIC_MODEL, NEXT, OPENAI_MODEL, get_time, get_weather, main, question, scenario
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

TOOLS = [tool("get_weather")(get_weather), tool("get_time")(get_time)]


def agent(llm=None, **more):
    llm = llm or LLM(model=f"openai/{OPENAI_MODEL}", **more)
    return Agent(
        role="Weather man", goal="Tell the weather", backstory="Long at sea.", tools=TOOLS, llm=llm, max_retry_limit=0
    )


def crew(text, desk):
    task = Task(description=text, expected_output="one line", agent=desk)
    result = Crew(agents=[desk], tasks=[task], memory=False).kickoff()
    return {"raw": result.raw, "usage": result.token_usage}


@scenario
def crewai_chat():
    return crew(question("crewai_chat"), agent())


@scenario
def crewai_stream():
    return crew(question("crewai_stream"), agent(stream=True))


@scenario
def crewai_anthropic():
    return crew(question("crewai_anthropic"), agent(LLM(model=f"anthropic/{ANTHROPIC_MODEL}", max_tokens=512)))


@scenario
def crewai_two_tasks():
    desk = agent()
    tasks = [
        Task(description=text, expected_output="one line", agent=desk) for text in (question("crewai_two_tasks"), NEXT)
    ]
    result = Crew(agents=[desk], tasks=tasks, memory=False).kickoff()
    return {"raw": [output.raw for output in result.tasks_output], "usage": result.token_usage}


@scenario
def crewai_429():
    return crew(question("crewai_429", " [429]"), agent())


@scenario
def crewai_400():
    return crew(question("crewai_400", " [400]"), agent())


if __name__ == "__main__":
    main()
