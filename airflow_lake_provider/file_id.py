"""Identifiers of files: sortable by time, unique over machines."""

from __future__ import annotations

import os
import threading
import time

_lock = threading.Lock()
_last = 0


def new_file_id() -> str:
    """32 hexadecimal digits laid out like a version 7 UUID (RFC 9562): milliseconds first, then random bits.

    Ids of one process rise strictly; those of several are in the order of their clocks.
    """
    global _last
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | random
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    with _lock:
        _last = value = max(value, _last + 1)
    return f"{value:032x}"
