"""What SDKs ask for beside conversations: models, embeddings, token counts."""

from anthropic import Anthropic
from common import ANTHROPIC_MODEL, main, scenario
from openai import OpenAI

openai, anthropic = OpenAI(), Anthropic()


@scenario
def openai_models():
    return sorted(model.id for model in openai.models.list())


@scenario
def anthropic_models():
    return sorted(model.id for model in anthropic.models.list())


@scenario
def embeddings():
    return openai.embeddings.create(model="text-embedding-fake", input=["one", "two"])


@scenario
def count_tokens():
    messages = [{"role": "user", "content": "How many tokens?"}]
    return anthropic.messages.count_tokens(model=ANTHROPIC_MODEL, messages=messages)


if __name__ == "__main__":
    main()
