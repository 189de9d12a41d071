"""Bitmaps over the bytes of a block: one bit per byte, so that 64 bytes are looked at in one step.

A bitmap is an array of 64-bit words; the bit of byte ``i`` is bit ``i % 64`` of word ``i // 64``. Bits beyond the end
of the block are 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Comparing and packing in pieces that stay in the processor's cache.
_PIECE: Final = 256 << 10
_ONE: Final = np.uint64(1)
_63: Final = np.uint64(63)
_STEPS: Final = tuple(np.uint64(step) for step in (1, 2, 4, 8, 16, 32))


def bits_of(data: Bytes, byte: int) -> Words:
    """Where ``byte`` stands."""
    words = np.zeros((len(data) + 63) // 64, np.uint64)
    packed = words.view(np.uint8)
    for start in range(0, len(data), _PIECE):
        piece = np.packbits(data[start : start + _PIECE] == byte, bitorder="little")
        packed[start // 8 : start // 8 + len(piece)] = piece
    return words


def bits_at(positions: Positions, size: int) -> Words:
    """The bitmap of a block of ``size`` bytes with the bits at ``positions``."""
    flags = np.zeros(size, np.bool_)
    flags[positions] = True
    return pack(flags)


def pack(flags: Mask) -> Words:
    """A bitmap of truth values."""
    words = np.zeros((len(flags) + 63) // 64, np.uint64)
    packed = np.packbits(flags, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


def positions_of(words: Words) -> Positions:
    """The places of all set bits, ascending."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def flags_of(words: Words, start: int, stop: int) -> Mask:
    """The bits ``start`` to ``stop`` as truth values."""
    low = start >> 3
    flags = np.unpackbits(words.view(np.uint8)[low : (stop + 7) >> 3], bitorder="little")
    return flags[start - low * 8 : stop - low * 8].view(np.bool_)


def first_bit(words: Words) -> int:
    """The place of the first set bit, or -1."""
    where = np.flatnonzero(words)
    if not len(where):
        return -1
    index = int(where[0])
    word = int(words[index])
    return index * 64 + ((word & -word).bit_length() - 1)


def last_bit(words: Words, before: int) -> int:
    """The place of the last set bit in front of ``before``, or -1."""
    index = min(before >> 6, len(words))
    if index < len(words):
        word = int(words[index]) & ((1 << (before & 63)) - 1)
        if word:
            return index * 64 + word.bit_length() - 1
    # Backwards in growing steps: it is nearly always close.
    step = 64
    while index > 0:
        low = max(0, index - step)
        where = np.flatnonzero(words[low:index])
        if len(where):
            found = low + int(where[-1])
            return found * 64 + int(words[found]).bit_length() - 1
        index, step = low, step * 8
    return -1


def count(words: Words) -> int:
    """How many bits are set."""
    return int(np.bitwise_count(words).sum(dtype=np.int64))


def keep_before(words: Words, end: int) -> Words:
    """The bits in front of ``end``, as a new bitmap of the same length."""
    index = end >> 6
    kept = words.copy()
    kept[index + (end & 63 > 0) :] = 0
    if end & 63 and index < len(kept):
        kept[index] &= np.uint64((1 << (end & 63)) - 1)
    return kept


def after(words: Words, first: bool) -> Words:
    """The bits right behind the set ones; ``first`` is the bit of byte 0."""
    moved = words << _ONE
    moved[1:] |= words[:-1] >> _63
    if first and len(moved):
        moved[0] |= _ONE
    return moved


def ahead(words: Words) -> Words:
    """The bits right in front of the set ones."""
    moved = words >> _ONE
    moved[:-1] |= words[1:] << _63
    return moved


def parity(words: Words) -> Words:
    """At each place whether the number of set bits up to and with it is odd."""
    odd = words
    for step in _STEPS:
        odd = odd ^ (odd << step)
    carried = np.bitwise_xor.accumulate(odd >> _63)
    odd[1:] ^= np.uint64(0) - carried[:-1]
    return odd


def counts_before(words: Words, positions: Positions) -> Positions:
    """For each of ``positions`` how many bits are set in front of it."""
    in_word = np.bitwise_count(words)
    before = np.zeros(len(words) + 1, np.int64)
    np.cumsum(in_word, out=before[1:])
    index = positions >> 6
    below = (_ONE << (positions & 63).astype(np.uint64)) - _ONE
    inside = words[np.minimum(index, len(words) - 1)] & below
    found: Positions = before[index] + np.where(index < len(words), np.bitwise_count(inside), 0)
    return found
