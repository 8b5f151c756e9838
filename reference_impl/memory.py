"""How a task of the reference trainer holds memory: what it has had once, it keeps.

TensorFlow allocates a tensor for each message and frees it right after. glibc gives blocks that large back to the
kernel (from 32 MiB on always, see mallopt(3), M_MMAP_THRESHOLD), so every step pays for the same pages again: at 64 MB
of parameters that was a quarter of a sync step's CPU time. A task lives as long as its training, so there is nobody to
give memory back to.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST = 1 << 30
"""Bytes; larger blocks are mapped and unmapped one by one."""


def keep_memory() -> None:
    """Tell glibc not to give memory back; before any thread allocates. Elsewhere (musl, macOS) it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # one arena: the others are heaps of 64 MiB at most, so large blocks would be mapped all the same
        for parameter, value in ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, LARGEST), (M_ARENA_MAX, 1)):
            mallopt(parameter, value)
