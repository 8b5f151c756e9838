"""Workers on real GPUs: each its own, with a tower on each, in processes and in containers."""

from __future__ import annotations

import pytest

from psconform import judge
from psconform.launchers.gpus import gpus
from psconform.runner.session import Session


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.mark.parametrize("launcher", ["process", "docker"])
@pytest.mark.parametrize("update", ["sync", "async"])
def test_towers_ran_on_their_gpus(launcher, update, session, tmp_path):
    each = len(gpus()) // 2
    layout = f"ps=1,worker=2,gpus={each}"
    run = judge(layout=layout, update=update, steps=20, launcher=launcher, out=tmp_path / "run", session=session)
    assert run.valid, run.explain()
    where = ", ".join(f"GPU:{number}" for number in range(each))
    assert f"devices: worker:0 on {where}; worker:1 on {where}" in run.explain()
