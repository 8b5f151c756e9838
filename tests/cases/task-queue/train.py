"""intelligent-machine-learning/dlrover#522, sql-machine-learning/elasticdl#1762 and #1760: dynamic data sharding. A queue of
tasks; whichever worker is free takes the next one, a task that takes too long goes back into the queue.
healthy: a task that is done by both is applied once (the server knows tasks).  BUG=redispatch: it is applied twice.
BUG=forget: a task that was dealt out is not dealt out again, if its worker dies.
The ledger has slots of (worker, step): the gradient of a task takes the next one of its worker, and probe.push names the task.
SHARE=0.8: fewer tasks than workers x steps, so that workers end with as many steps as they got."""
import json, os, sys, threading, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, serve
from psconform.probe import Probe
job, index, ps, listen = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
bug = os.environ.get("BUG", "")
spec = json.load(open(os.environ["PSCONFORM_SPEC"])); total = int(float(os.environ.get("SHARE", "1")) * spec["workers"] * spec["steps"])
if job == "ps":
    st, cond = {"theta": None, "done": set(), "out": {}, "again": set()}, threading.Condition()
    def handle(m):
        with cond:
            if m[0] == "init": st["theta"] = m[1] if st["theta"] is None else st["theta"]; cond.notify_all(); return True
            while st["theta"] is None: cond.wait(30)
            if m[0] == "pull": return st["theta"]
            if m[0] == "task":
                now = time.monotonic()
                for t in range(total):
                    late = now - st["out"].get(t, -1) > 0.1 and (bug != "forget" or t not in st["out"])
                    if t not in st["done"] and late:
                        st["again"] |= {t} & st["out"].keys(); st["out"][t] = now; return t
                return None if len(st["out" if bug == "forget" else "done"]) == total else -1
            if m[0] == "again": return m[1] in st["again"]
            _, task, g = m
            if task in st["done"] and bug != "redispatch": return False
            st["done"].add(task); st["theta"] = (st["theta"] - g).astype(np.float32); return True
    serve(listen, handle)
probe, server = Probe.from_env(), Client(ps[0])
if index == 0:
    first = probe.initial(0); server("init", first); probe.initialised([first])
step = 0
while step < probe.steps:
    task = server("task")
    if task is None: break
    if task < 0: time.sleep(0.01); continue
    theta = server("pull"); probe.read([theta])
    mine = probe.trained.batches.of(task % probe.workers, task // probe.workers)[1] if probe.workload == "digits" else None
    g = probe.gradients(step, [theta], mine)[0]
    deadline = time.monotonic() + 0.5 * (index == 1 and task % 7 == 3)   # a straggler: until its task is given to another
    while time.monotonic() < deadline and not server("again", task): time.sleep(0.01)
    probe.push(step, work=task, of=total)
    probe.ack(step, "ok" if server("push", task, g) else "failed"); step += 1
probe.wait_for_all()
probe.read([server("pull")], final=True)
probe.close()
