"""Calls of the reference trainer: what comes back, and what nobody can say."""

from __future__ import annotations

import socket

import pytest

pytestmark = pytest.mark.tensorflow


def test_an_error_whose_text_cannot_be_read_is_one_that_may_pass():
    """TensorFlow decodes what a ps sends as its error, which may be anything."""
    from psconform.reference_impl.recovery.calls import Calls

    def run(*, options):
        del options
        raise UnicodeDecodeError("utf-8", b"\xa4", 0, 1, "invalid start byte")

    with socket.create_server(("127.0.0.1", 0)) as there:
        connected = []
        calls = Calls(
            [f"127.0.0.1:{there.getsockname()[1]}"],
            most_s=60.0,
            connect=lambda: connected.append(True),
            idle=lambda: None,
        )
        assert calls.ask(run) is None
        assert connected == [True]
