"""Stand-ins for the helpers of pods: what rules they were told to set, and counts that a test gives them."""

from __future__ import annotations

from collections import defaultdict

from psconform.faults.plan_file import parse_plan
from psconform.faults.pod_network import Wires
from psconform.layout import Layout, Task

LAYOUT = Layout(ps=2, workers=2)
TASKS = LAYOUT.tasks
PROXIES = Task("toxiproxy", 0)
WORKER, SERVER = Task("worker", 1), Task("ps", 0)
ADDRESSES = {task: f"10.0.0.{number}:2222" for number, task in enumerate(TASKS, start=2)}


class Pods:
    """Helpers that count nothing by themselves."""

    def __init__(self):
        self.rules = defaultdict(dict)
        self.packets = defaultdict(dict)
        self.interface = {"there": True, "received": 0, "sent": 0}
        self.bucket, self.waited, self.found = None, 0, set()

    def ask(self, task, *, do, **said):
        match do:
            case "rule":
                self.rules[task][said.pop("name")] = said
            case "unrule":
                self.rules[task].pop(said["name"])
            case "counted":
                return {"packets": {name: self.packets[task].get(name, 0) for name in self.rules[task]}}
            case "rate":
                self.bucket = said["kbit"]
            case "unrate":
                self.bucket = None
            case "waited":
                return {"times": -1 if self.bucket is None else self.waited}
            case "interface":
                return self.interface
            case "found":
                return {"found": said["name"] in self.found}
        return {"done": True}


class Proxied:
    def dialled(self, dialler, listener):
        return f"10.0.0.99:{20000 + 100 * TASKS.index(dialler) + TASKS.index(listener)}"


def fault_of(kind, where, extra=""):
    name = "task" if ":" in where and "->" not in where else "links"
    text = f'[[fault]]\nkind = "{kind}"\n{name} = "{where}"\nat = 5\n{extra}'
    (fault,) = parse_plan(text, place="plan", layout=LAYOUT, steps=50)
    return fault


def wires(pods, links=None):
    return Wires(pods.ask, ADDRESSES.__getitem__, links, PROXIES)
