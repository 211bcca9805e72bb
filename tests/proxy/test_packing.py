"""Packed records: smaller, the same when unpacked, and a damaged one is called damaged."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from services.proxy.packing import pack, pack_all, unpack
from services.proxy.packing_dictionary import FILE, samples

RECORD = b'{"atdp":"1.0","kind":"user_message","record":"event","seq":7,"y":{"status":"ok"},"hash":"sha256:ab"}'
PACKED = bytes.fromhex("0228b52ffd20641d010060736571223a372c226162227d07fc430ca5b420b32f5ec53231c47f36e621fc5a445c")


def test_a_record_that_was_packed_with_the_second_dictionary_can_be_read_for_ever() -> None:
    assert unpack(PACKED) == RECORD
    assert len(PACKED) < len(RECORD) / 2


def test_a_record_is_the_same_when_it_is_unpacked_and_less_than_half_while_it_is_packed() -> None:
    records = samples(300, seed=7)
    packed = [pack(record) for record in records]
    assert [unpack(body) for body in packed] == records
    assert sum(map(len, packed)) < sum(map(len, records)) / 2


@pytest.mark.parametrize("count", [0, 1, 15, 16, 200])
def test_many_records_at_once_are_packed_as_each_is_alone(count: int) -> None:
    records = samples(count, seed=11)
    assert pack_all(records) == [pack(record) for record in records]


def test_what_was_never_packed_is_given_back() -> None:
    assert unpack(RECORD) == RECORD
    assert unpack(RECORD.decode()) == RECORD


def test_a_damaged_body_is_called_damaged_or_says_something_else_but_never_fails_otherwise() -> None:
    chance = random.Random(1)
    body = pack(samples(1, seed=3)[0])
    for _ in range(2000):
        damaged = bytearray(body)
        damaged[chance.randrange(1, len(body))] ^= 1 << chance.randrange(8)
        try:
            unpack(bytes(damaged))
        except ValueError as error:
            assert "damaged" in str(error)


@pytest.mark.parametrize("body", [b"\x02", b"\x02abc", b"\x02" + bytes(64)])
def test_what_is_no_frame_is_called_damaged(body: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpack(body)


def test_a_frame_that_claims_to_be_huge_asks_for_no_memory() -> None:
    claim = b"\x02" + bytes.fromhex("28b52ffd") + bytes([0b1110_0000]) + (2**61).to_bytes(8, "little") + bytes(8)
    with pytest.raises(ValueError, match="damaged"):
        unpack(claim)


def test_threads_pack_and_unpack_at_once() -> None:
    records = samples(400, seed=11)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda record: unpack(pack(record)), records)) == records


def test_the_dictionary_is_one_that_was_trained() -> None:
    dictionary = zstandard.ZstdCompressionDict(FILE.read_bytes())
    assert dictionary.dict_id() != 0
