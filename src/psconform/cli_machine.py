"""Commands about this machine and about what there is to choose from: list, doctor, clean; images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from .launchers.engine import engine
from .launchers.images import Image, Say, load, save
from .launchers.images import build as build_images
from .launchers.images import images as built_images
from .printable import printable
from .report.listing import LISTS, print_list, print_rows
from .report.text import wrapped
from .terminal import Json, print_json
from .verdict import counted

if TYPE_CHECKING:
    from .doctor import Finding

Listing = Literal["targets", "workloads", "checks", "layouts", "defects", "faults", "launchers", "compatibility"]
images = typer.Typer(help="Build, list, save and load the images for --launcher docker.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A .tar file.")]
FIX = "    fix: "


def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    as_json: Json = False,
) -> None:
    """List what there is to choose from."""
    print_json(LISTS[what]()) if as_json else print_list(what)


def doctor(as_json: Json = False) -> None:
    """Say what this machine has for psconform, and what to do about what it lacks."""
    from .doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    _print_findings(findings)


def _print_findings(findings: list[Finding]) -> None:
    """What is here, then of each other part why it is not, what cannot be used without it, and how to get it."""
    found = [finding for finding in findings if finding.found]
    missing = [finding for finding in findings if not finding.found]
    width = max(len(finding.name) for finding in findings)
    lines = [f"{len(found)} of {len(findings)} parts found", ""]
    lines += [f"  {finding.name:{width}}  {finding.version}" for finding in found]
    lines += ["", "Not found (commands are for Debian and Ubuntu):"] * bool(missing)
    for finding in missing:
        faults = f" ({counted(len(finding.faults), 'kind')} of faults)" * bool(finding.faults)
        lines += ["", f"  {finding.name}: {finding.why}", f"    cannot be used: {finding.needed_for}{faults}"]
        lines.append(f"{FIX}{finding.command}")
    console = Console(highlight=False, soft_wrap=True)
    for line in map(printable, lines):  # a command is left whole, so that it can be copied
        console.print(Text(line) if line.startswith(FIX) else wrapped(Text(line), console.width))


def clean() -> None:
    """End processes, remove containers, networks, mounts and folders that a killed psconform has left.

    Nothing of a running one is touched.
    """
    from .errors import PsconformError
    from .launchers.cleanup import end_orphans, remove_folders, remove_mounts, remove_pods

    silent: PsconformError | None = None
    ended = end_orphans()
    for orphan in ended:
        sys.stdout.write(f"ended {orphan.pid}: {printable(orphan.command)}\n")
    sys.stdout.write(f"{len(ended)} process(es) ended\n")
    try:
        for name in remove_pods():
            sys.stdout.write(f"removed {name}\n")
    except PsconformError as error:
        silent = error  # what is left of the rest is removed all the same
    for folder in remove_mounts():  # before what they may lie in is deleted
        sys.stdout.write(f"unmounted {printable(folder)}\n")
    for folder in remove_folders():
        sys.stdout.write(f"deleted {printable(folder)}\n")
    if silent is not None:
        raise silent


@images.command()
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
        made = build_images(base=base, gpu=gpu, toxiproxy=need_program(say), say=say)
    _print(made)


@images.command(name="list")
def list_images(as_json: Json = False) -> None:
    """List the images that psconform has built."""
    found = built_images()
    if as_json:
        print_json([{"name": i.name, "kind": i.kind, "version": i.version, "bytes": i.size} for i in found])
    else:
        _print(found)


@images.command(name="save")
def save_(file: File) -> None:
    """Write all of them to one file, for a machine that reaches no registry."""
    with _progress() as say:
        kept = save(file, say=say)
    _print(kept)


@images.command(name="load")
def load_(file: File) -> None:
    """Load what `psconform images save` or `docker save` has written."""
    with _progress() as say:
        found = load(file, say=say)
    _print(found)


def _print(found: list[Image]) -> None:
    print_rows([{"image": i.name, "what": i.kind, "version": i.version, "size": f"{i.size >> 20} MiB"} for i in found])


@contextmanager
def _progress() -> Iterator[Say]:
    """On a terminal one line that changes, and the time so far; else a line for each step, not for each megabyte."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("images", total=None)
            yield lambda text: bar.update(task, description=text)
    else:
        yield lambda text: None if text.endswith("MiB") else console.out(text, highlight=False)
