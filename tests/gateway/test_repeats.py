"""JSON in which a name stands twice: another reader may take the other value."""

from __future__ import annotations

import orjson
import pytest

from services.gateway.asgi import repeats


@pytest.mark.parametrize(
    ("body", "twice"),
    [
        (rb'{"a":1,"a":2}', True),
        (rb'{"a":1,"a":1}', True),
        (rb'{"p":{"i":1,"\u0069":2}}', True),
        (rb'[{"a":{"b":[{"c":1,"d":1,"c":2}]}}]', True),
        (rb'{"a":"\u003a","a":1}', True),
        (rb'{"a":1,"b":"\u003a","a":1}', True),
        (rb'{"a":1,"b":"\\u003a","a":1}', True),
        (rb'{"a":"x:y","b":{"c":[{"d":1}]}}', False),
        (rb'{"a":"\u003A\u003a","b":1}', False),
        (rb'{"a":"\\\u003A \\u003a","b":1}', False),
        (b'{"a" : 1,\n"b\\u003a":"\\"a\\":"}', False),
        (b"[]", False),
        (b"null", False),
    ],
)
def test_a_name_that_stands_twice_is_found_wherever_colons_are_hidden(body: bytes, twice: bool) -> None:
    assert repeats(orjson.loads(body), body) is twice
