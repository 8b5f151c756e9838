"""The images in which tasks run: what goes into them, and how they are built, listed, saved and loaded.

No Python package is fetched while an image builds: they are collected here, with the pip of this machine and whatever
index that uses, so the same Dockerfile builds with a registry and without one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from ..errors import BadInput, PsconformError
from ..version import __version__
from .engine import LABEL, engine, told

SLIM = "python:3.11-slim-bookworm"
GPU = "tensorflow/tensorflow:2.20.0-gpu"
DEBIAN = f"{LABEL}/base:bookworm"
"""What docker/base.sh makes of Debian's packages, where no registry is reached."""
PYTHON = "3.11"
"""Of all three of them: the wheels are for it."""
TRAINER, TOXIPROXY = "trainer", "toxiproxy"
KIND_LABEL, CODE_LABEL, STAGE_LABEL = f"{LABEL}.image", f"{LABEL}.code", f"{LABEL}.stage"
VERSION_LABEL = "org.opencontainers.image.version"
TRAINER_CODE = "psconform.reference_impl"
WORDS = ("errors", "layout", "models", "optimizers", "probe", "times", "trained", "version")
HELPER_CODE = ("mangler", "pod", "rules", "traffic")
"""What runs in the image: the trainer, what it and its helper import of psconform, and the helper. The rest of
psconform is in it, too, but judges and breaks from outside."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """An image that psconform has built: its name, which of them, of which version, and its size in bytes."""

    name: str
    kind: str
    version: str
    size: int


def trainer_image(*, gpu: bool = False) -> str:
    """The name of the trainer's image that goes with this psconform."""
    return f"{LABEL}/{TRAINER}:{__version__}{'-gpu' if gpu else ''}"


def toxiproxy_image() -> str:
    """The name of Toxiproxy's image that goes with this psconform."""
    return f"{LABEL}/{TOXIPROXY}:{__version__}"


def build(*, base: str = "", gpu: bool = False, toxiproxy: Path, say: Say = lambda _: None) -> list[Image]:
    """Build the images of the trainer and of Toxiproxy; returns them.

    Args:
        base: what they are built on; by default ``SLIM`` (``GPU``), or where it is neither here nor can be pulled
            the Debian base.
        gpu: for GPU layouts; the base brings TensorFlow.
        toxiproxy: the program, statically linked.
        say: is told what happens, a line at a time.

    Raises:
        PsconformError: there is no engine, or no base, or a build fails; says with which step.
    """
    base = _base(base or (GPU if gpu else SLIM), fixed=bool(base), gpu=gpu, say=say)
    with tempfile.TemporaryDirectory(prefix="psconform-images-") as name:
        folder = Path(name)
        _trainer_context(folder / TRAINER, gpu=gpu, say=say)
        labels = {"BASE": base, "VERSION": __version__, "CODE": code_stamp()}
        _build(folder / TRAINER, tag=trainer_image(gpu=gpu), arguments=labels, say=say)
        _toxiproxy_context(folder / TOXIPROXY, toxiproxy)
        labels = {"BASE": DEBIAN if base == DEBIAN else SLIM if gpu else base, "VERSION": __version__}
        if gpu:
            labels["BASE"] = _base(SLIM, fixed=False, gpu=False, say=say)
        _build(folder / TOXIPROXY, tag=toxiproxy_image(), arguments=labels, say=say)
    _tidy()
    names = {trainer_image(gpu=gpu), toxiproxy_image()}
    return [image for image in images() if image.name in names]


def images() -> list[Image]:
    """The images that psconform has built, by name; raises PsconformError if there is no engine."""
    with told("images cannot be listed"):
        found = engine().images(filters={"label": KIND_LABEL})
    named = [(tag, said) for said in found for tag in said["RepoTags"] or ()]
    return sorted(
        (
            Image(
                tag,
                said["Labels"][KIND_LABEL],
                said["Labels"].get(VERSION_LABEL, ""),
                said["Size"],
            )
            for tag, said in named
        ),
        key=lambda image: image.name,
    )


def need(name: str, *, own: bool) -> None:
    """Raises PsconformError if an image is not here, or (``own``) is of other code than this psconform."""
    with told(f"image {name}"):
        found = engine().images(name=name)
    hint = "psconform images build makes it" if own else "docker pull it, or load it with docker load"
    if not found:
        raise PsconformError(f"there is no image {name}: {hint}")
    code = (found[0]["Labels"] or {}).get(CODE_LABEL)
    if own and code is not None and code != code_stamp():
        raise PsconformError(f"image {name} was built with other code than this psconform: {hint} anew")


def save(path: Path, *, say: Say = lambda _: None) -> list[Image]:
    """Write all images of psconform to one file, for ``load`` or ``docker load``; raises PsconformError, BadInput."""
    if path.is_dir() or not path.name:
        raise BadInput("FILE", "is a folder: name the file to be written", value=str(path))
    kept = images()
    if not kept:
        raise PsconformError("there is no image to save: psconform images build makes them")
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file, told("the images cannot be saved"):
            written = 0
            # one archive of several images is what the engine makes of several names; the SDK asks for one
            answer = engine()._get(
                engine()._url("/images/get"), params={"names": [image.name for image in kept]}, stream=True
            )
            for chunk in engine()._stream_raw_result(answer, 1 << 20, False):
                written += file.write(chunk)
                say(f"{written >> 20} MiB")
        temporary.replace(path)
    except OSError as error:
        raise BadInput(str(path), f"cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return kept


def load(path: Path, *, say: Say = lambda _: None) -> list[Image]:
    """Load what ``save`` has written; raises BadInput, PsconformError."""
    try:
        if path.is_file() and not _is_archive(path):
            raise BadInput(
                str(path), "is no archive of images", hint="psconform images save, or docker save, makes one"
            )
        with path.open("rb") as file, told(f"{path} cannot be loaded"):
            for said in engine().load_image(_Told(file, say), quiet=True):
                if "error" in said:
                    raise PsconformError(f"{path} cannot be loaded: {said['error']}")
    except FileNotFoundError:
        raise BadInput(str(path), "is not there") from None
    except OSError as error:
        raise BadInput(str(path), f"cannot be read ({error.strerror})") from None
    return images()


def _is_archive(path: Path) -> bool:
    """It begins as one, maybe compressed; what zstd has made of it is the engine's to say."""
    with path.open("rb") as file:
        if file.read(4) == b"\x28\xb5\x2f\xfd":
            return True
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, lzma.LZMAError, zlib.error):
        return False


class _Told:
    """A file that says how much of it was read."""

    def __init__(self, file: BinaryIO, say: Say) -> None:
        self._file, self._say, self._read = file, say, 0

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._file.read(1 << 20):
            self._read += len(chunk)
            self._say(f"{self._read >> 20} MiB")
            yield chunk


def code_stamp() -> str:
    """What the code that tasks run is: changes with any line of it."""
    package = Path(__file__).resolve().parents[1]
    trainer = (Path(folder) for folder in importlib.import_module(TRAINER_CODE).__path__)
    files = [path for folder in trainer for path in sorted(folder.glob("*.py"))]
    files += [package / f"{name}.py" for name in WORDS]
    files += [package / "faults" / f"{name}.py" for name in HELPER_CODE]
    stamp = hashlib.sha256()
    for path in files:
        stamp.update(path.name.encode() + path.read_bytes())
    return stamp.hexdigest()[:16]


def _base(base: str, *, fixed: bool, gpu: bool, say: Say) -> str:
    """The base, pulled if need be; where that cannot be and another is not asked for, Debian's packages."""
    import docker

    client = engine()
    if client.images(name=base):
        return base
    repository, _, tag = base.rpartition(":") if ":" in base.rpartition("/")[2] else (base, "", "latest")
    say(f"pulling {base}")
    try:
        for said in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in said:
                raise docker.errors.DockerException(said["error"])
    except (docker.errors.DockerException, OSError) as error:
        why = " ".join(str(getattr(error, "explanation", None) or error).split())
        if fixed or gpu:
            raise PsconformError(f"base image {base} is not here and cannot be pulled: {why}") from None
        say(f"{base} cannot be pulled ({why[:120]})")
        return _debian(why, say)
    return base


def _debian(why: str, say: Say) -> str:
    if engine().images(name=DEBIAN):
        say(f"taking {DEBIAN}")
        return DEBIAN
    if shutil.which("mmdebstrap") is None or shutil.which("docker") is None:
        missing = "mmdebstrap" if shutil.which("mmdebstrap") is None else "the docker client"
        raise PsconformError(
            f"no base image: {SLIM} cannot be pulled ({why[:200]}), and one of Debian's packages needs {missing} "
            "(Debian: apt-get install mmdebstrap docker.io)"
        )
    say(f"making {DEBIAN} of Debian's packages")
    command = ["bash", str(docker_folder() / "base.sh"), DEBIAN]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PsconformError(f"docker/base.sh failed: {said[-1] if said else f'exit status {done.returncode}'}")
    return DEBIAN


def _trainer_context(folder: Path, *, gpu: bool, say: Say) -> None:
    folder.mkdir()
    shutil.copy(docker_folder() / "Dockerfile", folder)
    requirements = "requirements-gpu.txt" if gpu else "requirements.txt"
    shutil.copy(docker_folder() / requirements, folder / "requirements.txt")
    say("collecting Python packages")
    wheels = ("download", "--only-binary=:all:", "--python-version", PYTHON, "--no-deps", "-r")
    _pip(*wheels, str(folder / "requirements.txt"), "-d", str(folder / "wheels"))
    (folder / "psconform").mkdir()
    _own_wheel(folder / "psconform")


def _toxiproxy_context(folder: Path, program: Path) -> None:
    folder.mkdir()
    shutil.copy(docker_folder() / "toxiproxy.Dockerfile", folder / "Dockerfile")
    shutil.copy(program, folder / "toxiproxy-server")
    (folder / "toxiproxy-server").chmod(0o755)


def _build(folder: Path, *, tag: str, arguments: dict[str, str], say: Say) -> None:
    say(f"building {tag}")
    step = last = ""
    with told(f"image {tag} cannot be built"):
        # rm: no container of a step is left; what was cached for a step that has not changed is used
        for said in engine().build(
            path=str(folder), tag=tag, buildargs=arguments, rm=True, forcerm=True, decode=True, timeout=None
        ):
            if "error" in said:
                raise PsconformError(f"image {tag} cannot be built, at {step}; it said last: {last or said['error']}")
            text = str(said.get("stream", "")).strip()
            if text.startswith("Step "):
                step, last = text, ""
                say(f"{tag}: {text}")
            elif text and not text.startswith(("--->", "Removing intermediate container")):
                last = text.splitlines()[-1]


def _tidy() -> None:
    """Remove what earlier builds have left without a name: images that were replaced, and build stages but the last.

    What a container is of stays; the next build tidies that, too.
    """
    api = engine()
    left = api.images(filters={"dangling": True, "label": KIND_LABEL}, quiet=True)
    stages = sorted(api.images(filters={"dangling": True, "label": STAGE_LABEL}), key=lambda said: -said["Created"])
    for image in (*left, *(said["Id"] for said in stages[1:])):
        with contextlib.suppress(PsconformError), told(f"image {image} cannot be removed"):
            api.remove_image(image)


def docker_folder() -> Path:
    """The folder docker/ of the project: as installed, or in the source that is run from."""
    package = Path(__file__).resolve().parents[1]
    return next(path for path in (package / "docker", package.parents[1] / "docker") if path.is_dir())


def _own_wheel(folder: Path) -> None:
    """A wheel of this psconform: of its source, or where it was installed of what was installed."""
    found = metadata.distribution("psconform")
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        source = Path(origin["url"].removeprefix("file://"))
        with tempfile.TemporaryDirectory(prefix="psconform-images-") as name:  # setuptools leaves build/ where it works
            copy = Path(name) / "source"
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*", "build", "psconform-runs", "*.egg-info"))
            _pip("wheel", "--no-deps", "-w", str(folder), str(copy))
        return
    files = [path for path in found.files or () if not str(path).startswith("..") and path.suffix != ".pyc"]
    with zipfile.ZipFile(folder / f"psconform-{found.version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in files:
            if path.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                wheel.write(str(found.locate_file(path)), str(path))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PsconformError(f"pip {arguments[0]} failed: {said[-1][:300] if said else f'status {done.returncode}'}")
