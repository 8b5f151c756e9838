"""What the tasks of a run have recorded so far, and how much of that is progress."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..layout import Task

_ACK = re.compile(rb'"kind" ?: ?"(?:ack|update)"')
_ROUND = re.compile(rb'"kind" ?: ?"(?:read|push|samples|resume|restore)"')
_UNKNOWN = re.compile(rb'"outcome" ?: ?"unknown"')


def events_of(folder: Path, task: Task, life: int) -> Path:
    """What one life of a task records into; of none yet (-1) the first."""
    return folder / "events" / f"{task.slug}{f'.{life}' if life > 0 else ''}.jsonl"


@dataclass
class Records:
    """Follows the event files of a run; ``acked``: acknowledgements in them, of calls that were cut off none."""

    acked: int = 0
    _sizes: dict[Path, int] = field(default_factory=dict)

    def look(self, paths: Iterable[Path]) -> bool:
        """Whether what these have gained since the last look is progress; counts acknowledgements on the way.

        Not progress is what a task that goes round in circles records: reads, the same push again, its rollbacks.
        """
        grown = False
        for path in paths:
            before = self._sizes.get(path, 0)
            try:
                with path.open("rb") as file:
                    file.seek(before)
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._sizes[path] = before + len(whole)
            moves = [line for line in whole.splitlines() if _moves(line)]
            grown = grown or bool(moves)
            self.acked += sum(_ACK.search(line) is not None for line in moves)
        return grown


def _moves(line: bytes) -> bool:
    return not _ROUND.search(line) and not _UNKNOWN.search(line)
