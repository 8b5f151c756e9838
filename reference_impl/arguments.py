"""The command line of a task."""

from __future__ import annotations

import argparse

from psconform.compatibility import GPUS, check_option, check_options
from psconform.errors import BadInput
from psconform.layout import MAX_ACCUMULATED, MAX_CLIP_NORM, MAX_DROP_AFTER_S, MAX_GPUS, MAX_LOCAL_STEPS
from psconform.options import OF_TRAINERS, REDUCTIONS
from psconform.times import parse_seconds, spell

USUAL = {"reduction": REDUCTIONS[0], "staleness": -1, "learning_rate": 1.0, "drop_after": 0.0, "emulate_gpus": 0}
"""Defaults that are others here: no bound, and seconds, as the placeholders of target.toml say."""
BOUNDS = {
    "steps": (1, 10**9),
    "keep": (1, 1000),
    "give_up_after": (1, 86400),
    "drop_after": (0, MAX_DROP_AFTER_S),
    "gpus": (0, MAX_GPUS),
    "local_steps": (1, MAX_LOCAL_STEPS),
    "accumulate": (1, MAX_ACCUMULATED),
    "learning_rate": (1e-9, 1e9),
    "clip_norm": (0, MAX_CLIP_NORM),
}

_EXAMPLE = """\
by hand, one task per shell, as with any TensorFlow program:

  export CLUSTER='"cluster": {"ps": ["localhost:2220"], "worker": ["localhost:2221", "localhost:2222"]}'
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"ps\\", \\"index\\": 0}}"     python -m psconform.reference_impl
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 0}}" python -m psconform.reference_impl
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 1}}" python -m psconform.reference_impl

Every task must be given the same options. `psconform run` does all this and judges the run.
"""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The options of a task; ``every`` steps or ``every_s`` seconds are between checkpoints. Bad options end it."""
    parser = argparse.ArgumentParser(
        prog="python -m psconform.reference_impl",
        description="One task of a minimal TensorFlow ps/worker trainer; cluster and task come from TF_CONFIG "
        "(jobs ps and worker; worker:0 is the chief). Without a job ps every worker holds a replica, and they exchange "
        "gradients by all-reduce.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in OF_TRAINERS:
        default = USUAL.get(option.name, option.default)
        choices = ("none", "topk") if option.name == "compression" else option.choices or None
        parser.add_argument(option.flag, type=type(default), choices=choices, default=default, help=option.help)
    parser.add_argument("--steps", type=int, default=200, help="steps of each worker (under psconform, from its spec)")
    parser.add_argument("--checkpoint-dir", default="", help="survive the death of any task: where checkpoints go")
    parser.add_argument("--checkpoint-every", default="50", help="steps of worker:0 (default: 50), or 500ms")
    parser.add_argument(
        "--give-up-after",
        type=float,
        default=600.0,
        help="with --checkpoint-dir: seconds without a sign of the others after which a task ends (default: 600)",
    )
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that are kept, the newest (default: 3)")
    parser.add_argument("--gpus", type=int, default=0, help="a tower on each so many GPUs of a worker (default: none)")
    parser.add_argument("--defect", default="", help="one deliberate bug: see `psconform list defects`")
    options = parser.parse_args(argv)
    try:
        options.every, options.every_s = _interval(options.checkpoint_every)
        _check(options)
    except BadInput as error:
        parser.error(str(error))
    return options


def _check(options: argparse.Namespace) -> None:
    """Raises BadInput for options that are out of bounds, or do not go together."""
    for name, (least, most) in BOUNDS.items():
        if not least <= getattr(options, name) <= most:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(option, f"must be between {least} and {most}", value=getattr(options, name))
    values = {option.name: getattr(options, option.name) for option in OF_TRAINERS}
    values |= {"staleness": None if options.staleness < 0 else options.staleness, GPUS: options.gpus}
    values |= {"drop_after": spell(options.drop_after), "emulate_gpus": bool(options.emulate_gpus)}
    check_options(values)
    if options.checkpoint_dir:
        saved = {**values, "checkpoint_every": options.checkpoint_every}
        check_option("checkpoint_every", saved, place="--checkpoint-dir", value=options.checkpoint_dir)


def _interval(text: str) -> tuple[int, float]:
    """Steps or seconds between checkpoints, the other one is 0; raises BadInput."""
    place = "--checkpoint-every"
    steps, seconds = (int(text), 0.0) if text.isdecimal() else (0, parse_seconds(text, place=place))
    if not (steps >= 1 or seconds > 0):
        raise BadInput(place, "must be at least one step, or a time such as 500ms", value=text)
    return steps, seconds
