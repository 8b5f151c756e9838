"""Starts tasks of the reference trainer by forking a process that has imported TensorFlow already; see recovering.py.

Requests and answers are lines of JSON: ``{"env", "argv", "log"}`` -> pid of the new task, ``{"poll": pid}`` -> its exit
status, or null while it runs. Ends, with all its tasks, when its standard input does.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
import warnings

PR_SET_PDEATHSIG = 1


def start(request, ended):
    pid = os.fork()
    if pid:
        ended.pop(pid, None)  # the kernel gives a number again, soon: every thread of a task has one, too
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["env"])
        for module in (worker, recovering_worker, chief):  # whoever waits long in a test waits for nothing
            module.CALL_TIMEOUT_S = float(os.environ.get("CALL_TIMEOUT_S", worker.CALL_TIMEOUT_S))
        patience_s = os.environ.get("ROUND_PATIENCE_S", recovering_worker.RecoveringWorker.round_patience_s)
        recovering_worker.RecoveringWorker.round_patience_s = float(patience_s)
        recovering_worker.POLL_S = float(os.environ.get("POLL_S", recovering_worker.POLL_S))
        main(request["argv"])
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def poll(pid, ended):
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended[pid]


if __name__ == "__main__":
    from psconform.reference_impl import worker
    from psconform.reference_impl.__main__ import main
    from psconform.reference_impl.modes import setup  # noqa: F401
    from psconform.reference_impl.recovery import chief, recovering_worker

    # TensorFlow's import leaves threads, none of which holds a lock that a task needs
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
    statuses: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        answer = poll(asked["poll"], statuses) if "poll" in asked else start(asked, statuses)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
