"""Large leaves of a record are kept apart, and whether there are any is told from its JSON alone."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.parts import INLINE_BYTES, externalize, may_have_leaves_to_move

_texts = st.one_of(
    st.text(max_size=20),
    st.integers(1, 2 * INLINE_BYTES).map("é".__mul__),
    st.integers(1, 2 * INLINE_BYTES).map("x".__mul__),
)
_names = st.sampled_from(["content", "result", "name", "ref", "bytes", "media_type", "messages", "prompt_token_ids"])
_values = st.recursive(
    st.one_of(_texts, st.integers(-1000, 1000), st.none(), st.lists(st.integers(0, 99_999), max_size=600)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["o", "a", "y", "ext", "explanation", "tokens"]), _values, max_size=4))
def test_a_record_that_is_said_to_have_nothing_to_move_keeps_all_of_it(record: dict[str, Any]) -> None:
    moved: list[bytes] = []

    def put(_: str, data: bytes) -> str:
        moved.append(data)
        return f"sha256:{len(moved)}"

    kept = externalize(record, put)
    if not may_have_leaves_to_move(orjson.dumps(record)):
        assert not moved
        assert kept == record
