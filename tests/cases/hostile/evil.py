"""A small correct trainer (good.py) with one bad habit, named by MODE."""
import os, sys, time, signal, json, threading
mode, job, index = os.environ.get("MODE", ""), sys.argv[1], int(sys.argv[2])
spec = os.environ.get("PSCONFORM_SPEC",""); run = os.path.dirname(spec)
task = os.environ.get("PSCONFORM_TASK","")
ev = f"{run}/events/{job}-{index}.jsonl"
def good():
    sys.argv = ["good.py"] + sys.argv[3:]
    import runpy; runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)),"good.py"), run_name="__main__")
def bg(f): threading.Thread(target=f, daemon=True).start()
def daemon(f):
    if os.fork()==0:
        os.setsid()
        if os.fork()==0:
            for fd in range(3,200):
                try: os.close(fd)
                except OSError: pass
            os.environ.clear(); f(); os._exit(0)
        os._exit(0)
def at_step(n, f):
    from psconform.probe import Probe
    before = Probe.gradient
    def gradient(self, step):
        if step == n: f()
        return before(self, step)
    Probe.gradient = gradient
w1 = task=="worker:1"
if mode=="exit0" and job=="worker": sys.exit(0)
if mode=="psexit0" and job=="ps": sys.exit(0)
if mode=="w1exit0" and w1: sys.exit(0)
if mode=="never" and job=="worker": time.sleep(10000)
if mode=="nevers" and w1: time.sleep(10000)
if mode=="psnever" and job=="ps": time.sleep(10000)
if mode=="flood":
    def f():
        s="x"*999+"\n"
        while True: sys.stdout.write(s); sys.stderr.write(s)
    bg(f); time.sleep(3); 
if mode=="ignterm": signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
if mode=="ignhang": signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10000)
if mode=="daemon":
    def f():
        time.sleep(600)
    daemon(f); daemon(f)
if mode=="esc": print("\x1b[2J\x1b[31mVALID: 35 valid\x1b[0m\r\n  S1  fake\x07"); sys.exit(1)
if mode=="esc3" and w1: print("\x1b[2J\x1b[1;1H\x1b[32mVALID: 35 valid\x1b[0m\r"); sys.exit(1)
if mode=="esc2": sys.stdout.buffer.write(b"\xff\xfe\x00\x1b]0;title\x07\x9b31m \xc2\x9b2J end"); sys.exit(1)
if mode=="longline": sys.stdout.write("y"*50_000_000); sys.stdout.flush(); sys.exit(1)
if mode=="selfkill" and w1: os.kill(os.getpid(),9)
if mode=="exit255" and w1: os._exit(255)
if mode=="lie" and w1: os.environ["PSCONFORM_TASK"]="worker:0"
if mode=="lie2" and w1: os.environ["PSCONFORM_TASK"]="../../../../tmp/pwn:0"
if mode=="lie3" and w1: os.environ["PSCONFORM_TASK"]="ps:0"
if mode=="rmrun" and w1:
    import shutil; at_step(3, lambda: shutil.rmtree(run,ignore_errors=True))
if mode=="rmev" and w1:
    at_step(3, lambda: os.unlink(ev))
if mode=="evlink" and w1: os.symlink("/etc/passwd", ev)
if mode=="evfifo" and w1: os.mkfifo(ev)
if mode=="evdir" and w1: os.mkdir(ev)
if mode=="evzero" and w1: os.symlink("/dev/zero", ev)
if mode=="vectorzero" and w1: os.symlink("/dev/zero", f"{run}/vectors/{job}-{index}.bin")
if mode=="evnew" : os.mkfifo(f"{run}/events/x-{job}-{index}.jsonl")
if mode=="evgb" and w1:
    def f():
        fd=os.open(ev,os.O_WRONLY|os.O_CREAT|os.O_APPEND); b=b"z"*1_000_000
        for _ in range(1000): os.write(fd,b)
        os.write(fd,b"\n")
    f(); sys.exit(0)
if mode=="evsparse" and w1:
    with open(ev,"ab") as h: h.truncate(50<<30)
    sys.exit(0)
if mode=="evsparse" and task=="worker:0" and ".calibration-" not in run: time.sleep(10000)
if mode=="evnl" and w1:
    with open(ev,"ab") as h:
        for _ in range(300): h.write(b"{}\n"*300000)
    sys.exit(0)
if mode=="doneall":
    for i in range(4): open(f"{run}/done/worker-{i}","w").close()
if mode=="donedir" and w1:
    os.makedirs(f"{run}/done/worker-0"); os.makedirs(f"{run}/done/worker-1")
if mode=="killparent" and w1: time.sleep(.3); os.kill(os.getppid(),9)
if mode=="stopparent" and w1: time.sleep(.3); os.kill(os.getppid(),19)
if mode=="stopself" and w1:
    bg(lambda: (time.sleep(.3), os.kill(os.getpid(),19)))
    time.sleep(.5)
if mode=="chmod": os.chmod(run,0); 
if mode=="manifest" and w1: open(f"{run}/manifest.json","w").write("{}")
if mode=="loglink":
    for n in os.listdir(f"{run}/logs"): os.unlink(f"{run}/logs/{n}"); os.symlink("/etc/shadow", f"{run}/logs/{n}")
    sys.exit(1)
if mode=="logfifo":
    for n in os.listdir(f"{run}/logs"): os.unlink(f"{run}/logs/{n}"); os.mkfifo(f"{run}/logs/{n}")
    sys.exit(1)
if mode=="logrm":
    import shutil; shutil.rmtree(f"{run}/logs"); sys.exit(1)
if mode=="spec" and w1: open(spec,"w").write('{"workers":'+"9"*300)
if mode=="tty": 
    try: fd=os.open("/dev/tty",os.O_RDWR); os.write(fd,b"\x1b[2J")
    except OSError as e: print(e)
    print(repr(sys.stdin.read(10)))
if mode=="setsid":
    try: os.setsid()
    except OSError: pass
if mode=="closeall":
    pass
good()
