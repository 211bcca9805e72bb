"""OpenAI's SDK: chat completions, Responses with and without the server's memory, errors."""

import json
import sys

from common import CITY, NEXT, OPENAI_MODEL, REASONING_MODEL, SYSTEM, main, question, run_tool, scenario
from openai import OpenAI

client = OpenAI()
FUNCTIONS = [
    {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY},
    {"name": "get_time", "description": "The time of day."},
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT = [{"type": "function", "parameters": {"type": "object", "properties": {}}, **function} for function in FUNCTIONS]


def chat_loop(messages, ask):
    """Call the model until it wants no more tools; gives what it said each time."""
    got = []
    while True:
        completion, seen = ask(messages)
        got.append(seen)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return got
        for call in message.tool_calls:
            result = run_tool(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def whole(model):
    def ask(messages):
        completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        return completion, {"completion": completion, "request_id": completion._request_id}

    return ask


def streamed(messages):
    events = []
    with client.chat.completions.stream(
        model=OPENAI_MODEL, messages=messages, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            events.append(event.type)
        completion = stream.get_final_completion()
    return completion, {"completion": completion, "events": events}


def two_turns(name, ask):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(name)}]
    got = chat_loop(messages, ask)
    messages.append({"role": "user", "content": NEXT})
    return got + chat_loop(messages, ask)


@scenario
def chat():
    return two_turns("chat", whole(OPENAI_MODEL))


@scenario
def chat_stream():
    return two_turns("chat_stream", streamed)


@scenario
def chat_reasoning():
    return two_turns("chat_reasoning", whole(REASONING_MODEL))


@scenario
def chat_429():
    return chat_loop([{"role": "user", "content": question("chat_429", " [429]")}], whole(OPENAI_MODEL))


@scenario
def chat_400():
    return chat_loop([{"role": "user", "content": question("chat_400", " [400]")}], whole(OPENAI_MODEL))


@scenario
def chat_cut():
    return chat_loop([{"role": "user", "content": question("chat_cut", " [cut]")}], streamed)


def outputs(response):
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": run_tool(call.name, json.loads(call.arguments)),
        }
        for call in calls
    ]


@scenario
def responses_previous_id():
    got = [
        client.responses.create(
            model=OPENAI_MODEL, instructions=SYSTEM, input=question("responses_previous_id"), tools=FLAT
        )
    ]
    got += [
        client.responses.create(model=OPENAI_MODEL, input=outputs(got[-1]), previous_response_id=got[-1].id, tools=FLAT)
    ]
    got += [client.responses.create(model=OPENAI_MODEL, input=NEXT, previous_response_id=got[-1].id, tools=FLAT)]
    got += [
        client.responses.create(model=OPENAI_MODEL, input=outputs(got[-1]), previous_response_id=got[-1].id, tools=FLAT)
    ]
    return got


@scenario
def responses_stateless():
    items, got = [{"role": "user", "content": question("responses_stateless")}], []
    for _ in range(2):
        response = client.responses.create(
            model=OPENAI_MODEL,
            instructions=SYSTEM,
            input=items,
            tools=FLAT,
            store=False,
            include=["reasoning.encrypted_content"],
        )
        got.append(response)
        items += [item.model_dump(exclude_none=True) for item in response.output] + outputs(response)
    return got


@scenario
def responses_stream():
    items, got = [{"role": "user", "content": question("responses_stream")}], []
    for _ in range(2):
        with client.responses.stream(model=OPENAI_MODEL, input=items, tools=FLAT) as stream:
            events = [event.type for event in stream]
            response = stream.get_final_response()
        got.append(
            {
                "response": response.model_dump(
                    mode="json", exclude={"output": {"__all__": {"parsed_arguments", "parsed"}}}
                ),
                "events": events,
            }
        )
        items += [i.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for i in response.output] + outputs(
            response
        )
    return got


@scenario
def responses_cut():
    with client.responses.stream(model=OPENAI_MODEL, input=question("responses_cut", " [cut]"), tools=FLAT) as stream:
        return [event.type for event in stream] and stream.get_final_response()


if __name__ == "__main__":
    sys.exit(main())
