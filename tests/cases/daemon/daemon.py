"""Start a trainer as a daemon would: not below this process, in a session of its own, with an empty environment.

``daemon.py HIDES SCRIPT ARGS``: with HIDES 1 the trainer does not know its process id, as in a namespace of its own.
"""

import json
import os
import runpy
import sys

if sys.argv[1].startswith("{"):
    os.environ.update(json.loads(sys.argv[1]))
    if sys.argv[2] == "1":
        os.getpid = lambda: 1
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
ended, inherited = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(ended)
        os.set_inheritable(inherited, True)
        os.execve(sys.executable, [sys.executable, sys.argv[0], json.dumps(dict(os.environ)), *sys.argv[1:]], {})
    os._exit(0)
os.close(inherited)
os.read(ended, 1)  # until the trainer has ended
