"""A record of a run with restarted tasks that is cut, anywhere, or gone: undecided, or a violation that was there."""

import shutil

import pytest

from psconform.api import check, judge
from psconform.errors import PsconformError

PLAN = """
fault = [
  {kind = "kill", task = "worker:1", at = 8, restart_after = "200ms"},
  {kind = "kill", task = "ps:0", at = "worker:0@16", restart_after = "200ms"},
  {kind = "kill", task = "worker:0", at = 22, restart_after = "200ms"},
]
"""


LEFT = """
fault = [
  {kind = "kill", task = "worker:1", at = 4, restart_after = "200ms"},
  {kind = "kill", task = "worker:0", at = 8, restart_after = "200ms"},
  {kind = "kill", task = "worker:2", at = 14, restart_after = "never"},
  {kind = "kill", task = "worker:1", at = 25, restart_after = "200ms"},
]
"""
"""The chief, in its second life, says that the job goes on without worker:2."""
RUNS = {
    "sync": (PLAN, {"layout": "ps=2,worker=2"}),
    "async": (PLAN, {"layout": "ps=2,worker=2"}),
    "sync, left": (LEFT, {"layout": "ps=1,worker=3", "drop_after": "500ms"}),
    "async, left": (LEFT, {"layout": "ps=1,worker=3", "drop_after": "500ms"}),
}


@pytest.fixture(scope="module", params=list(RUNS))
def whole(request, tmp_path_factory):
    base, (plan, options) = tmp_path_factory.mktemp("base"), RUNS[request.param]
    (base / "plan.toml").write_text(plan, encoding="utf-8")
    options |= {"update": request.param.partition(",")[0], "steps": 30, "checkpoint_every": 5}
    run = judge(faults=base / "plan.toml", out=base / "run", **options)
    assert run.valid, run.explain()
    return run.folder


def cuts(lines):
    """Lines that are left: none, the start event, some of it, all but one line."""
    return sorted({0, min(1, lines - 1), *(lines * part // 6 for part in range(1, 6)), lines - 1})


def test_whatever_is_cut_or_gone_nobody_is_accused(whole, tmp_path):
    names = sorted(path.name for path in (whole / "events").iterdir())
    assert {"worker-1.1.jsonl", "worker-0.1.jsonl"} <= set(names)
    accused, judged = [], 0
    for name in names:
        kept = (whole / "events" / name).read_bytes().splitlines(keepends=True)
        for left in [None, *cuts(len(kept))]:
            folder = tmp_path / "cut"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            if left is None:
                (folder / "events" / name).unlink()
            else:
                (folder / "events" / name).write_bytes(b"".join(kept[:left]))
            try:
                run = check(folder)
            except PsconformError:
                continue  # no run folder any more, it says
            judged += 1
            if run.exit_code != 2:
                found = {key: said.witness[:1] for key, said in run.verdicts.items() if said.status == "violated"}
                accused.append((name, left, len(kept), run.exit_code, found))
    assert not accused
    assert judged > 5 * len(names)
