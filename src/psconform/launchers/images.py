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
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from ..errors import BadInput, PsconformError, Unavailable
from ..version import __version__
from . import image_cache
from .engine import LABEL, engine, told
from .local import scratch_folder

SLIM = "python:3.11-slim-bookworm"
GPU = "tensorflow/tensorflow:2.20.0-gpu"
LIBRARIES = f"{LABEL}/libraries"
"""Has TensorFlow, and the key of what it is made of as its tag."""
DEBIAN = f"{LABEL}/base:bookworm"
"""What docker/base.sh makes of Debian's packages, where no registry is reached."""
PYTHON = "3.11"
"""Of all three of them: the wheels are for it."""
TRAINER, TOXIPROXY = "trainer", "toxiproxy"
KIND_LABEL, CODE_LABEL, STAGE_LABEL = f"{LABEL}.image", f"{LABEL}.code", f"{LABEL}.stage"
MADE_LABEL = f"{LABEL}.made-of"
"""A key of all that an image was made of."""
VERSION_LABEL = "org.opencontainers.image.version"
TRAINER_CODE = "psconform.reference_impl"
WORDS = (
    *("compatibility", "defect", "errors", "layout", "models", "optimizers", "options", "probe", "times", "trained"),
    "version",
)
HELPER_CODE = ("iptables", "pod_agent", "traffic")
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
    """Build the images of the trainer and of Toxiproxy, if they are not here; returns them.

    What takes minutes, TensorFlow and a base of Debian's packages, is taken from `image_cache` if it is there.

    Args:
        base: what they are built on; by default ``SLIM`` (``GPU``), or where it is neither here nor can be pulled
            the Debian base.
        gpu: for GPU layouts; the base brings TensorFlow.
        toxiproxy: the program, statically linked.
        say: is told what happens, a line at a time.

    Raises:
        PsconformError: there is no engine, or no base, or a build fails; says with which step.
    """
    with image_cache.alone(say):
        on = _built_on(base, gpu=gpu)
        if not on:
            on = _base(base or (GPU if gpu else SLIM), fixed=bool(base), gpu=gpu, say=say)
            _build_trainer(on, gpu=gpu, say=say)
        small = on if not gpu else SLIM if _made_of(SLIM) else DEBIAN
        if not _is_built(toxiproxy_image(), _toxiproxy_key(small, toxiproxy)):
            small = _base(SLIM, fixed=False, gpu=False, say=say) if gpu else on
            _build_toxiproxy(small, toxiproxy, say=say)
        _tidy()
    names = {trainer_image(gpu=gpu), toxiproxy_image()}
    return [image for image in images() if image.name in names]


def _built_on(base: str, *, gpu: bool) -> str:
    """What the trainer's image that is here was built on, if it is made of what it would be made of now."""
    asked = (base,) if base else (GPU,) if gpu else (SLIM, DEBIAN)
    image = trainer_image(gpu=gpu)
    return next((name for name in asked if _made_of(name) and _is_built(image, _trainer_key(name, gpu=gpu))), "")


def _made_of(base: str) -> str:
    """What tells a base from others of that name: its id; of that of Debian's packages what base.sh makes it of.

    Empty if it is not here; of Debian's it is known before it is.
    """
    if base == DEBIAN:
        return _debian_key()
    found = engine().images(name=base)
    return str(found[0]["Id"]) if found else ""


def _debian_key() -> str:
    said = (os.environ.get(name, "") for name in ("PSCONFORM_SUITE", "PSCONFORM_MIRROR"))
    return image_cache.key_of(_text("base.sh"), *said)


def _libraries_key(base: str, *, gpu: bool) -> str:
    return image_cache.key_of(_made_of(base), _text("libraries.Dockerfile"), _text(_requirements(gpu=gpu)))


def _trainer_key(base: str, *, gpu: bool) -> str:
    libraries = _libraries_key(base, gpu=gpu)
    return image_cache.key_of(libraries, _text("Dockerfile"), __version__, code_stamp())


def _toxiproxy_key(base: str, program: Path) -> str:
    return image_cache.key_of(_made_of(base), _text("toxiproxy.Dockerfile"), __version__, program.read_bytes())


def _text(name: str) -> str:
    """A file of docker/."""
    return (docker_folder() / name).read_text(encoding="utf-8")


def _requirements(*, gpu: bool) -> str:
    return "requirements-gpu.txt" if gpu else "requirements.txt"


def _is_built(name: str, key: str) -> bool:
    """An image is here, and made of that."""
    with told(f"image {name}"):
        found = engine().images(name=name)
    return any((said["Labels"] or {}).get(MADE_LABEL) == key for said in found)


def _build_trainer(base: str, *, gpu: bool, say: Say) -> None:
    libraries = _libraries(base, gpu=gpu, say=say)
    tag = trainer_image(gpu=gpu)
    with _context("Dockerfile") as folder:
        (folder / "psconform").mkdir()
        _own_wheel(folder / "psconform")
        arguments = {"VERSION": __version__, "CODE": code_stamp(), "MADE_OF": _trainer_key(base, gpu=gpu)}
        _build(folder, tag=tag, arguments={"BASE": libraries, **arguments}, say=say)


def _libraries(base: str, *, gpu: bool, say: Say) -> str:
    """The image with TensorFlow and other packages, from the engine, else the cache, else built; its name."""
    key = _libraries_key(base, gpu=gpu)
    name = f"{LIBRARIES}:{key}"
    if _is_built(name, key) or _from_cache("libraries", key, name, say):
        return name
    _debian(base, say)
    with _context("libraries.Dockerfile") as folder:
        shutil.copy(docker_folder() / _requirements(gpu=gpu), folder / "requirements.txt")
        say("collecting Python packages, which may take minutes")
        wheels = ("download", "--only-binary=:all:", "--python-version", PYTHON, "--no-deps", "-r")
        _pip(*wheels, str(folder / "requirements.txt"), "-d", str(folder / "wheels"))
        # a base without iptables gets it from its distribution
        _build(folder, tag=name, arguments={"BASE": base, "MADE_OF": key}, say=say, network="default")
    _to_cache("libraries", key, [base, name], say)
    return name


def _build_toxiproxy(base: str, program: Path, *, say: Say) -> None:
    _debian(base, say)
    with _context("toxiproxy.Dockerfile") as folder:
        shutil.copy(program, folder / "toxiproxy-server")
        (folder / "toxiproxy-server").chmod(0o755)
        arguments = {"BASE": base, "VERSION": __version__, "MADE_OF": _toxiproxy_key(base, program)}
        _build(folder, tag=toxiproxy_image(), arguments=arguments, say=say)


def _to_cache(kind: str, key: str, names: list[str], say: Say) -> None:
    path = image_cache.path_of(kind, key)
    say(f"keeping it in {path}")
    with told(f"{path} cannot be written"):
        image_cache.keep(kind, key, _archive(names), say=say)


def _from_cache(kind: str, key: str, name: str, say: Say) -> bool:
    """Load an archive; returns whether that image is here then. One that is damaged is deleted."""
    with image_cache.kept(kind, key) as file:
        if file is None:
            return False
        say(f"loading {name} from {image_cache.path_of(kind, key)}")
        with contextlib.suppress(PsconformError), told(f"image {name}"):  # whatever it says it is not loaded
            for _ in engine().load_image(_Told(file, say), quiet=True):
                pass
    if _is_built(name, key):
        return True
    say("it is damaged")
    image_cache.drop(kind, key)
    return False


def images() -> list[Image]:
    """The images that psconform has built, by name; raises PsconformError if there is no engine."""
    with told("images cannot be listed"):
        found = engine().images(filters={"label": KIND_LABEL})
    made = [
        Image(tag, said["Labels"][KIND_LABEL], said["Labels"].get(VERSION_LABEL, ""), said["Size"])
        for said in found
        for tag in said["RepoTags"] or ()
    ]
    return sorted(made, key=lambda image: image.name)


def need(name: str, *, own: bool) -> None:
    """Raises PsconformError if an image is not here, or (``own``) is of other code than this psconform."""
    with told(f"image {name}"):
        found = engine().images(name=name)
    hint = "psconform images build makes it" if own else "docker pull it, or load it with docker load"
    if not found:
        raise Unavailable(f"there is no image {name}: {hint}")
    code = (found[0]["Labels"] or {}).get(CODE_LABEL)
    if own and code is not None and code != code_stamp():
        raise Unavailable(f"image {name} was built with other code than this psconform: {hint} anew")


def save(path: Path, *, say: Say = lambda _: None) -> list[Image]:
    """Write all images of psconform to one file, for ``load`` or ``docker load``; raises PsconformError, BadInput."""
    if path.is_dir() or not path.name:
        raise BadInput("FILE", "is a folder: name the file to be written", value=str(path))
    kept = images()
    if not kept:
        raise Unavailable("there is no image to save: psconform images build makes them")
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file, told("the images cannot be saved"):
            written = 0
            for chunk in _archive([image.name for image in kept]):
                written += file.write(chunk)
                say(f"{written >> 20} MiB")
        temporary.replace(path)
    except OSError as error:
        raise BadInput(str(path), f"cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return kept


def _archive(names: list[str]) -> Iterator[bytes]:
    """Several images in one archive, as the engine makes it; the SDK asks for one of one."""
    answer = engine()._get(engine()._url("/images/get"), params={"names": names}, stream=True)
    yield from engine()._stream_raw_result(answer, 1 << 20, False)


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
                    raise Unavailable(f"{path} cannot be loaded: {said['error']}")
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
    files = [path for folder in trainer for path in sorted(folder.rglob("*.py"))]
    files += [package / f"{name}.py" for name in WORDS]
    files += [package / "faults" / f"{name}.py" for name in HELPER_CODE]
    stamp = hashlib.sha256()
    for path in files:
        stamp.update(path.name.encode() + path.read_bytes())
    return stamp.hexdigest()[:16]


def _base(base: str, *, fixed: bool, gpu: bool, say: Say) -> str:
    """The base, pulled if need be; where that cannot be and another is not asked for the name of Debian's packages."""
    import docker

    client = engine()
    if client.images(name=base) or base == DEBIAN:
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
            raise Unavailable(f"base image {base} is not here and cannot be pulled: {why}") from None
        say(f"{base} cannot be pulled ({why[:120]}): taking {DEBIAN}")
        return DEBIAN
    return base


def _debian(base: str, say: Say) -> None:
    """The base of Debian's packages, if it is that and not here: from the cache, else made."""
    key = _debian_key()
    if base != DEBIAN or _is_built(DEBIAN, key) or _from_cache("base", key, DEBIAN, say):
        return
    if shutil.which("mmdebstrap") is None or shutil.which("docker") is None:
        missing = "mmdebstrap" if shutil.which("mmdebstrap") is None else "the docker client"
        raise Unavailable(
            f"no base image: {SLIM} cannot be pulled, and one of Debian's packages needs {missing} "
            "(Debian: apt-get install mmdebstrap docker.io)"
        )
    say(f"making {DEBIAN} of Debian's packages, which may take minutes")
    _call("docker/base.sh", ["bash", str(docker_folder() / "base.sh"), DEBIAN, key])
    _to_cache("base", key, [DEBIAN], say)


@contextmanager
def _context(dockerfile: str) -> Iterator[Path]:
    """A folder to build an image of, with its Dockerfile; gone afterwards."""
    with scratch_folder() as folder:
        shutil.copy(docker_folder() / dockerfile, folder / "Dockerfile")
        yield folder


def _build(folder: Path, *, tag: str, arguments: dict[str, str], say: Say, network: str = "none") -> None:
    say(f"building {tag}")
    step = last = ""
    began = time.monotonic()
    with told(f"image {tag} cannot be built"):
        # rm: no container of a step is left; what was cached for a step that has not changed is used
        for said in engine().build(
            path=str(folder),
            tag=tag,
            buildargs=arguments,
            network_mode=network,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=None,
        ):
            if "error" in said:
                raise Unavailable(f"image {tag} cannot be built, at {step}; it said last: {last or said['error']}")
            text = str(said.get("stream", "")).strip()
            if text.startswith("Step "):
                step, last = text, ""
                say(f"{tag}: {text}{_rest(text, time.monotonic() - began)}")
            elif text and not text.startswith(("--->", "Removing intermediate container")):
                last = text.splitlines()[-1]


def _rest(step: str, elapsed_s: float) -> str:
    """How long the rest of a build takes, at ``Step 3/9 : ...``, if its steps take as long as those before."""
    number, _, total = step.split()[1].partition("/")
    done, left = int(number) - 1, int(total) - int(number) + 1
    return f" (about {left * elapsed_s / done:.0f} s left)" if done else ""


def _tidy() -> None:
    """Remove what earlier builds have left: images that were replaced, build stages, old libraries.

    What a container is of stays; the next build tidies that, too.
    """
    api = engine()
    left: list[str] = []
    for label in (KIND_LABEL, STAGE_LABEL):
        left += api.images(filters={"dangling": True, "label": label}, quiet=True)
    libraries = sorted(api.images(name=LIBRARIES), key=lambda said: -said["Created"])
    left += [tag for said in libraries[image_cache.KEPT :] for tag in said["RepoTags"] or ()]
    for image in dict.fromkeys(left):
        with contextlib.suppress(PsconformError), told(f"image {image} cannot be removed"):
            api.remove_image(image)


def docker_folder() -> Path:
    """The folder docker/ of the project: as installed, or in the source that is run from."""
    package = Path(__file__).resolve().parents[1]
    return next(path for path in (package / "docker", package.parents[1] / "docker") if path.is_dir())


def _own_wheel(folder: Path) -> None:
    """A wheel of this psconform: of its source, or where it was installed of what was installed."""
    # an egg-info in the folder that this was started in tells of no installation: it has no RECORD
    installed = (found for found in metadata.distributions(name="psconform") if found.read_text("RECORD"))
    found = next(installed, None) or metadata.distribution("psconform")
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        source = Path(origin["url"].removeprefix("file://"))
        with scratch_folder() as scratch:  # setuptools leaves build/ where it works
            copy = scratch / "source"
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
    _call(f"pip {arguments[0]}", command)


def _call(what: str, command: list[str]) -> None:
    """Raises PsconformError with the last that it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{what} failed: {said[-1][:300] if said else f'exit status {done.returncode}'}")
