"""What a trainer loads runs on Python 3.9 and later, as three files in one folder, without psconform."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from psconform import models, probe, trained

from .tiers import every

FILES = [Path(module.__file__) for module in (models, probe, trained)]
VERSIONS = [(3, minor) for minor in range(9, 15)]
CODE = """
import json, os, sys
sys.path.insert(0, ".")
from pathlib import Path
for part in ("events", "vectors", "done"):
    Path("run", part).mkdir(parents=True)
from probe import Probe
for task, name in enumerate(("ledger", "dense-ledger", "decayed-ledger", "quadratic")):
    spec = {"run": "r", "workers": 4, "steps": 3, "unit": 840.0, "wait_s": 0.0, "workload": name, "update": "sync"}
    spec.update(variables=1, rate=0.1, delay=0, condition=10, seed=0)
    probe = Probe(spec, task="worker:%d" % task, folder="run")
    theta = probe.initial()
    probe.initialised([theta])
    for step in range(3):
        probe.read([theta], [step], shards=[0])
        theta = theta - probe.gradients(step, [theta])[0]
        probe.push(step)
        probe.ack(step, "ok", [step + 1])
        probe.ack(step, "failed")
        probe.read(None)
    probe.wait_for_all()
    probe.read([theta], final=True)
    probe.close()
    lines = Path("run", "events", "worker-%d.jsonl" % task).read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["start", "init"] + 3 * ["read", "push", "ack", "slip", "slip"] + ["done", "read", "end"], kinds
from trained import model_of
from models import Batches, Softmax
assert model_of({"workload": "digits", "model": "softmax"}) == Softmax()
assert Batches(samples=100, workers=2, batch=5).of(1, 3)[0] == 0
assert not {"psconform", "msgspec"} & set(sys.modules)
"""


def interpreter(version, folder):
    """A Python of that version, of PATH or pyenv, and where numpy is that its own pip has installed; None: none."""
    number = ".".join(map(str, version))
    found = shutil.which(f"python{number}")
    if found is None:
        return None
    pyenv = Path(found).parent.parent.glob(f"versions/{number}.*/bin/python")  # pyenv's own may be for other folders
    for python in (found, *map(str, pyenv)):
        if not subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode:
            return python, ""
        install = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", str(folder), "numpy"]
        if not subprocess.run(install, capture_output=True, check=False).returncode:
            return python, str(folder)
    return None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_syntax_is_that_of_all_pythons(path, version):
    ast.parse(path.read_text(), feature_version=version)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_called_that_python_3_9_lacks(path):
    """What ast does not tell: keywords of the standard library that are newer."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    used = {(ast.unparse(call.func), word.arg) for call in calls for word in call.keywords}
    assert not used & {("zip", "strict"), ("dataclass", "kw_only"), ("dataclass", "slots"), ("entry_points", "group")}


@pytest.mark.engine
@pytest.mark.parametrize("version", every(5, ((version,) for version in VERSIONS)))
def test_a_trainer_needs_three_files_and_numpy(tmp_path, version):
    found = interpreter(version, tmp_path / "numpy")
    if found is None:
        pytest.skip(f"there is no Python {version} with numpy here")
    for path in FILES:
        shutil.copy(path, tmp_path)
    command, env = [found[0], "-W", "error", "-c", CODE], {**os.environ, "PYTHONPATH": found[1]}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
