"""The claim for replay that an event makes."""

from __future__ import annotations

import msgspec
import pytest

from atdp.records import Replay
from services.proxy.ending import claim


@pytest.mark.parametrize(("seed", "kept"), [(17, 17), (2**60, msgspec.UNSET), (-(2**60), msgspec.UNSET)])
def test_a_seed_beyond_what_json_holds_exactly_is_left_to_the_parameters(seed: int, kept: object) -> None:
    claimed = claim({"seed": seed})
    assert claimed.seed == kept
    assert claimed.class_ == "deterministic"
    assert msgspec.convert(msgspec.to_builtins(claimed), Replay) == claimed
