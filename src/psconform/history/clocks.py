"""The clocks of many reads, in one piece: a number for each gradient counter, and no Python int for each of them.

A read has a clock of variables x workers numbers, so with 32 workers most numbers of a history are in clocks, and as
lists they would take longer to make, and to throw away, than all else that is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import msgspec
import numpy as np

from .columns import Ints
from .events import EVENTS, AnyEvent, Read

MOST = 2**53  # as events.Count


class LeanRead(Read, tag="read", frozen=True):
    """A read whose clock is still text."""

    clock: msgspec.Raw = None  # type: ignore[assignment]  # msgspec knows no "Raw or None"


_KINDS = [LeanRead if kind is Read else kind for kind in EVENTS]
DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(reduce(or_, _KINDS))
"""Decodes any event, a read as LeanRead."""


def clocks_of(events: Sequence[AnyEvent]) -> Ints | None:
    """The clocks of those reads among the events that have one, in order, int64[R, V, W].

    None: they are not all lists of as many lists of as many whole numbers from 0 to MOST, without spaces between.
    """
    texts = [bytes(event.clock) for event in events if isinstance(event, LeanRead) and event.clock is not None]
    if not texts:
        return np.zeros((0, 0, 0), np.int64)
    shape = texts[0].translate(None, b"0123456789")
    variables, workers = shape.count(b"[") - 1, shape.partition(b"]")[0].count(b",") + 1
    regular = b"[%b]" % b",".join([b"[%b]" % (b"," * (workers - 1))] * variables)
    if shape != regular or any(text.translate(None, b"0123456789") != shape for text in texts):
        return None
    text = b"".join(texts)
    if b"[]" in text:
        return None
    # The decoder has seen that this is JSON, so between the separators there is a number each time.
    found = np.fromstring(text.translate(bytes.maketrans(b"[],", b"   ")), np.int64, sep=" ")
    if found.size != len(texts) * variables * workers or found.max() > MOST:
        return None
    return found.reshape(len(texts), variables, workers)
