"""A push and its acknowledgement in one event: the same verdicts as from two."""

from __future__ import annotations

import pytest

from .bugs import Dropped, EarlyCommit, Twice
from .simulate import Trainer


def judged(kind, folder, *, one_event, **options):
    trainer = kind(**options)
    trainer.one_event = one_event
    return trainer.judge(folder)


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("kind", [Trainer, Dropped, Twice, EarlyCommit])
def test_one_event_says_what_two_say(tmp_path, kind, update):
    options = {"update": update, "workers": 3, "shards": (0, 1), "seed": 4}
    one = judged(kind, tmp_path / "one", one_event=True, **options)
    two = judged(kind, tmp_path / "two", one_event=False, **options)
    statuses = [[(v.guarantee, v.status) for v in run.verdicts] for run in (one, two)]
    assert statuses[0] == statuses[1]
    assert one.history.outcomes.tolist() == two.history.outcomes.tolist()
    assert '"kind":"update"' in (tmp_path / "one" / "events" / "worker-0.jsonl").read_text()
    assert '"kind":"push"' not in (tmp_path / "one" / "events" / "worker-0.jsonl").read_text()
