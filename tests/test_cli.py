"""The command line as its users meet it: what it prints, one line per error, exit codes."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import psconform
from psconform.cli import main
from psconform.doctor import examine
from psconform.launchers.engine import GLANCE_S, engine
from psconform.options import GROUPS, OPTIONS

from .waits import HANG_S, only_one_cleans

pytestmark = pytest.mark.engine

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"


def call(*arguments, cwd=None, stdin=subprocess.DEVNULL, **env):
    command = [sys.executable, "-m", "psconform.cli", *map(str, arguments)]
    environment = {**os.environ, **env}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, stdin=stdin, env=environment, timeout=HANG_S, check=False
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The entry point of the command, called in this process in a folder of its own: a start costs half a second."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def refused(arguments, monkeypatch, capfd):
    """The one line that says what is wrong with a call."""
    monkeypatch.setattr(sys, "argv", ["psconform", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (3, ""), err
    return one_line(err)


def one_line(err):
    first, *rest = err.splitlines()
    assert first.startswith("psconform: ")
    assert len(rest) <= 1
    assert all(line.startswith("Usage: psconform") for line in rest)
    return first


def test_version():
    done = call("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"psconform {psconform.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("run",), ("check",), ("list",), ("doctor",), ("clean",)])
def test_help(command):
    done = call(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout
    words = ("run", "check", "list", "doctor", "clean", "Exit codes") if not command else ("--help",)
    assert all(word in done.stdout for word in words)


def test_help_of_a_run_is_in_groups_each_with_an_example_and_fits_80_columns():
    done = call("run", "--help", COLUMNS="80")
    places = [done.stdout.find(f" {group.title} ") for group in GROUPS]
    assert -1 not in places
    assert places == sorted(places)
    assert max(map(len, done.stdout.splitlines())) <= 80
    ends = [*places[1:], len(done.stdout)]
    for group, begin, end in zip(GROUPS, places, ends, strict=True):
        shown = set(re.findall(r"^\S ?(--[a-z-]+)", done.stdout[begin:end], re.MULTILINE))
        assert {option.flag for option in OPTIONS.values() if option.group == group} - {"TARGET"} <= shown
        assert shown & set(re.findall(r"--[a-z-]+", group.example)), "the example shows an option of its group"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_each_example_of_the_help_is_a_run(here, monkeypatch, capfd, group):
    program, *words = shlex.split(group.example)
    series = []
    monkeypatch.setattr("psconform.cli._run_series", lambda made, **_: series.extend(made.plans) or sys.exit(0))
    monkeypatch.setattr(sys, "argv", [program, *words, *["--dry-run"] * ("--repeat" not in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert (program, ended.value.code, err) == ("psconform", 0, "")
    assert out or len(series) == 3
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("targets", {"reference"}),
        ("workloads", {"ledger"}),
        ("checks", {"S1", "R1", "A5"}),
        ("layouts", {"small", "default", "wide", "single"}),
        ("defects", {"drop-gradient", "apply-twice"}),
    ],
)
@pytest.mark.usefixtures("here")
def test_lists(monkeypatch, capfd, what, names):
    monkeypatch.setattr(sys, "argv", ["psconform", "list", what])
    with pytest.raises(SystemExit) as ended:
        main()
    text, machine = capfd.readouterr().out, call("list", what, "--json")
    assert (ended.value.code, machine.returncode, machine.stderr) == (0, 0, "")
    rows = json.loads(machine.stdout)
    assert names <= {row["name"] for row in rows}
    assert len({tuple(row) for row in rows}) == 1
    assert all(row["name"] in text for row in rows)


def test_of_faults_that_take_containers_it_is_said_that_no_engine_is_there():
    done = call("list", "faults", "--json", DOCKER_HOST="unix:///nowhere/docker.sock")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["pause"]["of"] == "container (--launcher docker)"
    lacks = {name: row["lacks here"] for name, row in rows.items()}
    assert lacks["pause"] == (
        "docker: there is no /nowhere/docker.sock, so --launcher docker cannot be used; fix: unset DOCKER_HOST"
    )
    assert "Docker engine" not in lacks["kill"]


def test_doctor():
    done = call("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    fields = {"name", "found", "version", "needed_for", "advice", "why", "command", "faults"}
    assert [set(part) for part in found] == [fields] * len(found)
    assert [part["name"] for part in found] == [
        "python",
        "tensorflow",
        "scikit-learn",
        "matplotlib",
        "toxiproxy-python",
        "pyroute2",
        "fuse",
        "docker",
        "docker SDK",
        "compose",
        "toxiproxy",
        "faketime",
        "gpus",
    ]
    assert all(part["needed_for"] and (part["found"] is not bool(part["advice"])) for part in found)
    text = call("doctor")
    assert text.returncode == 0
    assert all(part["name"] in text.stdout for part in found)


def test_doctor_without_the_docker_sdk_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    engine.cache_clear()
    (found,) = (part for part in examine() if part.name == "docker")
    assert found.found is False
    assert found.advice.startswith("docker SDK: there is no Python module docker, so --launcher docker cannot be used")
    assert found.command.endswith(" -m pip install 'docker>=7' 'pyyaml>=6'")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/[x]", "http://localhost:port", "no url", "http://[bad"])
def test_doctor_shows_a_url_that_nothing_answers_as_it_is(url):
    done = call("doctor", "--json", TOXIPROXY_URL=url)
    assert done.returncode == 0, done.stderr
    (part,) = (part for part in json.loads(done.stdout) if part["name"] == "toxiproxy")
    assert not part["found"]
    assert url in part["advice"]
    if "[x]" in url:
        assert url in call("doctor", TOXIPROXY_URL=url, COLUMNS="300").stdout


def test_clean_says_how_many():
    with only_one_cleans():
        done = call("clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(" process(es) ended")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", ["command"]),
        ("frobnicate", ["frobnicate"]),
        ("--frobnicate", ["--frobnicate"]),
        ("run --frobnicate", ["--frobnicate"]),
        ("run one two", ["two"]),
        ("run --steps", ["--steps"]),
        ("run --steps many", ["--steps", "many", "whole number"]),
        ("run --steps 0", ["--steps", "0", "between 1 and"]),
        ("run --steps -1", ["--steps", "-1"]),
        ("run --steps 99999999", ["--steps", "99999999"]),
        ("run --seed -1", ["--seed", "-1"]),
        ("run --reads 0", ["--reads", "0"]),
        ("run --update async --read-every 201", ["--read-every", "201", "between 1 and 200"]),
        ("run --read-every 2", ["--read-every", "2", "--update async"]),
        ("run --patience nan", ["--patience", "nan"]),
        ("run --patience 0", ["--patience", "0"]),
        ("run --slow worker:1", ["--slow", "TASK=TIME", "'worker:1'"]),
        ("run --slow worker:7=5ms", ["--slow", "'worker:7'", "valid: worker:0, worker:1, worker:2"]),
        ("run --slow worker:1=5ms --slow ps:0=5ms", ["--slow", "'ps:0'", "only workers"]),
        ("run --slow worker:1=5m", ["--slow", "'5m'", "us, ms, s"]),
        ("run --slow worker:1=5ms --slow worker:1=6ms", ["--slow", "worker:1 twice"]),
        ("run --slow worker:1=9s --patience 5", ["--slow", "worker:1", "'9s'", "--patience"]),
        ("run --faults one.toml --faults two.toml", ["--faults", "once", "one.toml two.toml"]),
        ("run --faults=", ["--faults", "with a plan"]),
        ("run --faults {here}/full/empty.toml", ["empty.toml", "holds no fault"]),
        ("run --faults {here}/full", ["--faults", "it is a folder, not a regular file"]),
        ("run --faults {here}/fifo.toml", ["--faults", "it is a FIFO, not a regular file"]),
        ("run --faults /dev/zero", ["--faults", "it is a device, not a regular file"]),
        ("run --layout {here}/fifo.toml", ["--layout", "it is a FIFO, not a regular file"]),
        ("run --layout {here}/zero.toml", ["--layout", "it is a device, not a regular file"]),
        ("run --layout ps=\uff15,worker=1", ["--layout", "cannot read"]),
        ("run --steps \uff15", ["--steps", "must be a whole number"]),
        ("run --update async --staleness 99999999999999999999", ["--staleness", "must be a whole number"]),
        ("run --learning-rate 1e400 --workload digits", ["--learning-rate", "must be a number"]),
        ("run --slow worker:1=1e400s", ["--slow", "between 0 and 60 s", "1e400s"]),
        ("run --max-log 5MB", ["--max-log", "such as 512MiB", "5MB"]),
        ("run --max-run 1KiB", ["--max-run", "must be between 64KiB and 1024GiB", "1KiB"]),
        ("run --batch 99", ["--batch", "99", "digits"]),
        ("run --workload quadratic --model mlp", ["--model", "mlp", "digits"]),
        ("run --update async --reduction sum", ["--reduction", "sum", "sync"]),
        ("run --repeat 0", ["--repeat", "0", "between 1 and"]),
        ("run --repeat few", ["--repeat", "few", "whole number"]),
        ("run --random-layouts", ["--random-layouts", "--repeat N"]),
        ("run --no-keep-valid", ["--no-keep-valid", "--repeat N"]),
        ("run --repeat 2 --random-layouts --layout small", ["--layout", "'small'", "drawn"]),
        ("run --repeat 2 --random-layouts --steps 1", ["--steps", "1", "at least 2"]),
        ("run --repeat 2 --out {here}/full", ["--out", "/full'", "not empty"]),
        ("run --layout ps=2", ["--layout", "ps=2", "worker"]),
        ("run --layout ps=2,worker=0", ["worker", "0", "between 1 and"]),
        ("run --layout ps=2,worker=999", ["worker", "999"]),
        ("run --layout ps=2,ps=2", ["--layout", "ps twice"]),
        ("run --layout ps=2,workers=3", ["--layout", "'workers'", "valid: ps, worker", "did you mean 'worker'"]),
        ("run --layout smal", ["--layout", "'smal'", "small, default, wide, single"]),
        ("run --update later", ["update", "'later'", "valid: sync, async"]),
        ("run --reduction max", ["reduction", "'max'", "valid: mean, sum"]),
        ("run --workload mnist", ["--workload", "'mnist'", "valid: ledger"]),
        ("run --defect apply-twise", ["--defect", "'apply-twise'", "did you mean 'apply-twice'"]),
        ("run --defect sum-not-mean --update async", ["--update", "'async'", "sync"]),
        ("run --defect torn-read --layout small", ["--layout", "ps=1,worker=2", "at least 2 ps"]),
        ("run {target} --defect apply-twice", ["--defect", "apply-twice", "reference"]),
        ("run referense", ["TARGET", "'referense'", "did you mean 'reference'"]),
        ("run missing.toml", ["missing.toml", "No such file"]),
        ("run {here}", ["TARGET", "no such target"]),
        ("run {here}/full/bad.toml", ["bad.toml", "is not TOML"]),
        ("run {here}/fifo.toml", ["fifo.toml", "it is a FIFO, not a regular file"]),
        ("run {here}/zero.toml", ["zero.toml", "it is a device, not a regular file"]),
        ("run /dev/zero", ["TARGET", "no such target"]),
        ("run {here}/full/empty.toml", ["empty.toml: name", "is missing"]),
        ("run --out {here}/full", ["--out", "/full'", "not empty"]),
        ("run --out {here}/file", ["--out", "/file'"]),
        ("run --out {here}/file/below", ["--out", "/file/below'", "is not a folder"]),
        ("run {target} --out {here}/full", ["--out", "/full'", "not empty"]),
        ("list", ["what"]),
        ("list everything", ["'everything'", "'targets'", "'workloads'", "'checks'", "'layouts'", "'defects'"]),
        ("check", ["folder"]),
        ("check {here}/missing", ["/missing", "not a run folder", "manifest.json"]),
        ("check {here}/file", ["/file", "not a run folder"]),
        ("check {here}/full", ["/full", "not a run folder"]),
        ("check {here}/odd", ["/odd/manifest.json", "not a manifest"]),
        ("check {long}", ["File name too long"]),
    ],
)
def test_bad_input_is_one_line_with_place_value_and_choices(here, monkeypatch, capfd, arguments, says):
    (here / "file").write_text("")
    (here / "full").mkdir()
    (here / "full" / "bad.toml").write_text("name = ")
    (here / "full" / "empty.toml").write_text("")
    os.mkfifo(here / "fifo.toml")
    (here / "zero.toml").symlink_to("/dev/zero")
    (here / "odd").mkdir()
    (here / "odd" / "manifest.json").write_text('{"run": 1}')
    before = sorted(here.rglob("*"))
    words = arguments.format(here=here, target=TARGET, long="x" * 300).split()
    line = refused(words, monkeypatch, capfd)
    assert [word for word in says if word.lower() not in line.lower()] == [], line
    assert sorted(here.rglob("*")) == before  # nothing was made


@pytest.mark.parametrize("arguments", [("run", "--steps", "many"), ("run", "no\nsuch"), ("check", "missing\nfolder")])
def test_bad_input_to_the_command_itself(tmp_path, arguments):
    done = call(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    one_line(done.stderr)


@pytest.mark.parametrize(("redirected", "status"), [(">/dev/full", 3), ("| true", 0), (">&-", 0), ("2>/dev/full", 0)])
def test_output_that_cannot_be_written_is_no_traceback(redirected, status):
    script = f"set -o pipefail; {sys.executable} -c 'from psconform.cli import main; main()' list checks {redirected}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1


@pytest.mark.parametrize("words", [["doctor"], ["list", "faults"]])
def test_a_stopped_docker_engine_is_not_waited_for(words, tmp_path):
    """It takes connections and answers none."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "engine"))
        engine.listen()
        command = [sys.executable, "-m", "psconform", *words, "--json"]
        env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/engine"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20 * GLANCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "no Docker engine answers at" in done.stdout


def test_a_program_that_is_not_there_is_one_line_and_status_3(tmp_path):
    (tmp_path / "target.toml").write_text(TARGET.read_text().replace('"{python}"', '"no-such-program"'))
    done = call("run", "target.toml", "--out", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    starting, *_, line = done.stderr.splitlines()
    assert starting.startswith("starting socket-ps on ps=2,worker=3, sync")
    assert line.startswith("psconform: ps:0 cannot be started: FileNotFoundError")
    assert "no-such-program" in line
