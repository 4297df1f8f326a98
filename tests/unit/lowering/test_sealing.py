"""Sealed bytes: whole or nothing."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.lowering.sealing import most_sealed_bytes, sealed, unsealed


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.data())
def test_what_was_sealed_comes_back_and_nothing_else_does(data: bytes, more: st.DataObject) -> None:
    blob = sealed(data)
    assert len(blob) <= most_sealed_bytes(len(data))
    assert unsealed(blob, limit_bytes=len(data)) == data
    if data:
        assert unsealed(blob, limit_bytes=len(data) - 1) is None
    place = more.draw(st.integers(0, len(blob) - 1))
    flipped = bytes([blob[place] ^ more.draw(st.integers(1, 255))])
    damaged = blob[:place] + flipped + blob[place + 1 :]
    # Two bytes of zlib's head may say the same thing in other words.
    assert unsealed(damaged, limit_bytes=1000) in (None, data)
    assert unsealed(blob[:place], limit_bytes=1000) is None


@pytest.mark.parametrize("blob", [b"", b"tuner1", b"\x7fELF" * 20, b"tuner1" + bytes(32) + b"no zlib"])
def test_other_bytes_are_nothing(blob: bytes) -> None:
    assert unsealed(blob, limit_bytes=1000) is None


def test_a_bomb_is_not_unpacked() -> None:
    blob = b"tuner1" + bytes(32) + zlib.compress(bytes(50_000_000))
    assert unsealed(blob, limit_bytes=1000) is None
