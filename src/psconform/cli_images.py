"""``psconform images``: build, list, save and load what tasks run in with ``--launcher docker``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .launchers.engine import engine
from .launchers.images import Image, Say, images, load, save
from .launchers.images import build as build_images
from .report.listing import print_rows
from .terminal import Json

app = typer.Typer(help="Build, list, save and load the images for --launcher docker.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A .tar file.")]


@app.command()
def build(
    base: Annotated[
        str, typer.Option(metavar="IMAGE", help="What they are built on. Default: the slim image, else Debian's.")
    ] = "",
    gpu: Annotated[bool, typer.Option("--gpu", help="For GPU layouts, on TensorFlow's GPU image.")] = False,
) -> None:
    """Build the image of the trainer, and that of Toxiproxy; what has not changed is not built again."""
    from .faults.toxiproxy_install import need_program

    engine()  # without one nothing else is worth a line
    with _progress() as say:
        made = build_images(base=base, gpu=gpu, toxiproxy=need_program(), say=say)
    _print(made)


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """List the images that psconform has built."""
    found = images()
    if as_json:
        rows = [{"name": i.name, "kind": i.kind, "version": i.version, "bytes": i.size} for i in found]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    _print(found)


@app.command(name="save")
def save_(file: File) -> None:
    """Write all of them to one file, for a machine that reaches no registry."""
    with _progress() as say:
        kept = save(file, say=say)
    _print(kept)


@app.command(name="load")
def load_(file: File) -> None:
    """Load what `psconform images save` or `docker save` has written."""
    with _progress() as say:
        found = load(file, say=say)
    _print(found)


def _print(found: list[Image]) -> None:
    print_rows([{"image": i.name, "what": i.kind, "version": i.version, "size": f"{i.size >> 20} MiB"} for i in found])


@contextmanager
def _progress() -> Iterator[Say]:
    """On a terminal one line that changes; else a line for each step, but not for each megabyte."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("images") as status:
            yield status.update
        return
    yield lambda text: None if text.endswith("MiB") else print_line(text)


def print_line(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
