"""Whatever stands in a file or an option of a user's own: a plan or one clear error, in bounded time and memory.

Each input is a valid one, changed in a few places: bytes, words, numbers, lines. Run folders are spoiled in
test_fuzz.py; nightly both make more than 100,000 inputs.
"""

from __future__ import annotations

import faulthandler
import random
import resource
from pathlib import Path

import pytest

from psconform.errors import PsconformError
from psconform.faults.plan_file import load_plan
from psconform.layout import Layout
from psconform.options import Options
from psconform.runner.layout_file import read_layout
from psconform.runner.plan import make_plan
from psconform.targets.toml import load_target

HERE = Path(__file__).parent
FEW, MANY = 150, 20_000
GROWTH = 200 << 20
LONGEST = 3000
"""Characters of an error."""
ONE_S = 60.0
"""So long may one input take: a thousand times what it does."""

WORDS = [
    "9" * 5000,
    "-1",
    "0",
    "1e400s",
    "1e-400s",
    "NaN",
    "inf",
    "true",
    "null",
    "[]",
    "{}",
    '""',
    "\x00",
    "\x1b[2J",
    "\u202e",
    "\uff15",  # a digit of full width
    "\u0665",  # an Arabic one
    "\ud7ff",
    "é" * 300,
    "{job.__class__}",
    "{0}",
    "{",
    "}}",
    "%s%n",
    "../" * 40,
    "/dev/zero",
    "[" * 3000,
    '{"a":' * 2000,
    "worker:999999999999",
    "worker:1->worker:1",
    "@",
    "..",
    "=",
    ",",
    "\n",
    '"""',
]
PLAN = """
[[fault]]
kind = "stall"
links = "worker:1->ps:0"
at = 20
until = 25

[[fault]]
kind = "kill"
task = "ps:0"
at = "worker:1@after-push:20"
restart_after = "200ms"

[[fault]]
kind = "slow-link"
links = "worker:0<->ps:0"
at = "1.5s"
for = "500ms"
"""
OPTIONS = {
    "layout": "ps=1,worker=2",
    "update": "async",
    "steps": 30,
    "seed": 1,
    "quorum": 0,
    "staleness": 2,
    "kill": ["worker:1@after-push:20"],
    "stop": ["ps:0@1s..3s"],
    "poison": ["worker:1@20=inf"],
    "slow": ["worker:1=50ms"],
    "batches": ["worker:1=9"],
    "drop_after": "2s",
    "restart_after": "500ms",
    "checkpoint_every": "50",
    "learning_rate": 0.1,
    "patience_s": 60.0,
    "max_log": "64MiB",
    "workload": "ledger",
    "faults": "random:stall,kill",
}


def changed(data: bytes, chance: random.Random) -> bytes:
    """The same with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        word = chance.choice(WORDS).encode("utf-8", errors="surrogatepass")
        lines = data.splitlines(keepends=True)
        tokens = [position for position, byte in enumerate(data) if byte in b'"=:,[]{} \n']
        here = chance.choice(tokens) if tokens else 0
        rest = next((position for position in tokens if position > here), len(data))
        data = chance.choice(
            [
                data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
                data[:at] + word + data[at:],
                data[: here + 1] + word + data[rest:],
                data[:at] + data[min(end, at + 30) :],
                data[:at],
                b"".join(chance.sample(lines, len(lines))),
                b"".join(line for line in lines if chance.random() > 0.1),
                data + data[at:end],
            ]
        )
    return data


def from_file(load, valid):
    """Inputs are texts of a file."""

    def once(folder, chance):
        path = folder / "file.toml"
        path.write_bytes(changed(valid.encode(), chance))
        load(path)

    return once


def options(folder, chance):
    """Inputs are options of ``psconform run``."""
    given = {name: OPTIONS[name] for name in chance.sample(sorted(OPTIONS), chance.randint(1, 5))}
    for name in chance.sample(sorted(given), 1):
        value = given[name]
        if isinstance(value, int | float):
            given[name] = chance.choice([-1, 0, 10**30, 2**63, float("nan"), float("inf"), 1e-320, True, "5", None])
        else:
            text = changed((value[0] if isinstance(value, list) else value).encode(), chance).decode(errors="replace")
            given[name] = [text] if isinstance(value, list) else text
    make_plan(Options(**given, out=folder / "out"))


TARGETS = [HERE / "socket_ps" / "target.toml", HERE / "socket_ps" / "target_durable.toml"]
INPUTS = {
    "target": from_file(load_target, TARGETS[0].read_text()),
    "durable target": from_file(load_target, TARGETS[1].read_text()),
    "plan": from_file(lambda path: load_plan(path, layout=Layout(ps=1, workers=2), steps=50), PLAN),
    "layout": from_file(read_layout, (HERE.parent / "docker" / "layouts" / "gpu.toml").read_text()),
    "options": options,
}


def fuzz(kind, folder, count):
    refusals = 0
    before = None
    for number in range(count):
        if number == 50:
            before = peak()
        faulthandler.dump_traceback_later(ONE_S, exit=True)
        error = None
        try:
            INPUTS[kind](folder, random.Random(f"{kind}:{number}"))
        except PsconformError as refusal:
            error = refusal
        except Exception as failure:
            raise AssertionError(f"{kind} {number}: {type(failure).__name__}: {failure}") from failure
        finally:
            faulthandler.cancel_dump_traceback_later()
        refusals += error is not None
        assert error is None or (error.exit_code == 3 and len(str(error)) < LONGEST), f"{kind} {number}: {error}"
    assert refusals, "nothing was changed"
    assert before is None or peak() - before < GROWTH


def peak():
    """Bytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("kind", INPUTS)
def test_odd_input_gets_an_answer_or_one_clear_error(kind, tmp_path):
    fuzz(kind, tmp_path, FEW)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", INPUTS)
def test_many_thousand_odd_inputs(kind, tmp_path):
    fuzz(kind, tmp_path, MANY)
