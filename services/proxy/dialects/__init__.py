"""The dialects agents speak, one file each."""

from services.proxy.dialects.base import Dialect
from services.proxy.dialects.chat import Chat
from services.proxy.dialects.completions import Completions
from services.proxy.dialects.messages import AnthropicMessages
from services.proxy.dialects.responses import Responses

CHAT = Chat()
RESPONSES = Responses()
MESSAGES = AnthropicMessages()
COMPLETIONS = Completions()

DIALECTS: dict[str, Dialect] = {each.path: each for each in (CHAT, RESPONSES, MESSAGES, COMPLETIONS)}
"""By the path behind `/v1`."""

BY_NAME: dict[str, Dialect] = {each.name: each for each in DIALECTS.values()}
