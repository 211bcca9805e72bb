"""Records as they lie in the table: compressed against a dictionary of what every record has.

Names of fields and short words are most of a record's bytes; the dictionary holds them, so that what remains
is mostly ids, hashes and what was said. A packed body begins with the number of its dictionary, an
unpacked one with `{`. A dictionary never changes: another one gets another number, and what the older ones
packed is read for ever. `packing_dictionary` makes the newest.

Whoever looks for text in the database's files must unpack first.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import zstandard

_DEFLATED, _ZSTANDARD = b"\x01", b"\x02"
"""First byte: raw deflate with the first dictionary, as older logs have it; Zstandard with the second."""

_WINDOW = -13
"""Raw deflate with a window of 8 KiB."""

_LEVEL = 1
"""Level 3 is 1% smaller and takes half as long again."""

_MOST_BYTES = 2**30
"""No record is larger unpacked: a damaged frame must not make us ask for more memory."""

_MANY = 16
"""Fewer are packed faster one by one: beginning costs 50 µs."""

_WORTH_IT = 0.9


@cache
def _dictionary(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


class _Zstandard(threading.local):
    """A thread's own: a compressor can't be used by two at once."""

    def __init__(self) -> None:
        dictionary = zstandard.ZstdCompressionDict(_dictionary("packing-2.zdict"))
        # the number in front says which dictionary it is, and the hash in the record whether it was damaged
        compressor = zstandard.ZstdCompressor(
            level=_LEVEL, dict_data=dictionary, write_dict_id=False, write_checksum=False
        )
        self.compress = compressor.compress
        self.compress_many = compressor.multi_compress_to_buffer
        self.decompress = zstandard.ZstdDecompressor(dict_data=dictionary).decompress


_zstandard = _Zstandard()


def pack(body: bytes) -> bytes:
    """A record's JSON, packed: a quarter to a half of it, in 7 µs."""
    return _ZSTANDARD + _zstandard.compress(body)


def pack_all(bodies: Sequence[bytes]) -> list[bytes]:
    """Each of them as `pack` packs it; many of them at once, without Python's lock, which other threads want."""
    if len(bodies) < _MANY:
        return [pack(body) for body in bodies]
    frames = _zstandard.compress_many(list(bodies))
    return [_ZSTANDARD + frames[place].tobytes() for place in range(len(frames))]


def unpack(stored: bytes | str) -> bytes:
    """A record's JSON, whether it was packed or not; raises `ValueError` when it was damaged."""
    if isinstance(stored, str):  # whoever edited the table by hand may have left text
        return stored.encode()
    mark = stored[:1]
    try:
        if mark == _ZSTANDARD:
            return _decompressed(stored[1:])
        if mark == _DEFLATED:
            inflate = zlib.decompressobj(_WINDOW, _dictionary("packing-1.txt"))
            return inflate.decompress(stored[1:]) + inflate.flush()
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"a packed record is damaged: {error}") from error
    return bytes(stored)


def pack_content(data: bytes) -> bytes | None:
    """Content that becomes smaller by packing, packed; None for what doesn't."""
    packed = zlib.compress(data, 1)
    return packed if len(packed) < _WORTH_IT * len(data) else None


def unpack_content(packed: bytes) -> bytes:
    """Raises `ValueError` when it was damaged."""
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"packed content is damaged: {error}") from error


def _decompressed(frame: bytes) -> bytes:
    if zstandard.frame_content_size(frame) > _MOST_BYTES:
        raise ValueError("a packed record is damaged: it says that it is larger than a record can be")
    return _zstandard.decompress(frame)
