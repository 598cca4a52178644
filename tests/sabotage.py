"""Fault injection by a sitecustomize.py on the ranks' PYTHONPATH: kill, hang or exit a rank."""

from __future__ import annotations

from pathlib import Path

_SITECUSTOMIZE = """
import glob, os, re, signal, sys, threading, time

def in_forward_pass_of_training():  # before any gradient was sent
    frame, names = sys._current_frames()[threading.main_thread().ident], set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {"accumulate", "forward"} <= names

def strike(what, pattern):
    while not glob.glob(pattern):
        time.sleep(0.02)
    try:  # once
        os.close(os.open(os.path.join(os.path.dirname(__file__), "struck"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        while not in_forward_pass_of_training():
            time.sleep(0.001)
        re.match("(a+)+$", "a" * 100 + "b")  # takes for ever, and lets no other thread have a turn
    os._exit(int(what))

rank, _, rest = os.environ.get("FAULT", "").partition(":")
what, _, pattern = rest.partition(":")
own = os.environ.get("FIRETRAIN_RANK", os.environ.get("SLURM_PROCID"))
if what and own == rank and {"train", "trials"} & set(sys.argv):
    if not pattern:
        pattern = os.path.dirname(os.environ["FIRETRAIN_ATTEMPT"]) + "/metrics.jsonl"
    threading.Thread(target=strike, args=(what, pattern), daemon=True).start()
"""


def write_sabotage(folder: Path) -> Path:
    """Create a folder for PYTHONPATH.

    The variable FAULT=RANK:WHAT[:PATTERN] then sets the fault: kill, hang or an exit code, once, as soon as a file matches
    PATTERN (default: the run's metrics). A rank hangs in a forward pass, so that others wait for its gradients.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return folder
