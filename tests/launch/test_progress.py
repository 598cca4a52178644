"""The display of a run's progress, in a terminal and elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from firetrain.cluster import duration
from firetrain.config import load_config
from firetrain.launch.progress import PlainLines, describe
from firetrain.records import Run

STEP = {"kind": "step", "step": 30, "epoch": 1, "loss": 1.25, "images_per_s": 1234.5}
EVALUATION = {"kind": "evaluation", "step": 45, "epoch": 1, "top1": 0.5, "loss": 1.3, "elapsed_s": 3.0}


def test_a_step_in_one_line_with_what_is_left_at_most() -> None:
    target = load_config("quickstart").config.target
    assert describe(STEP, {}, target) == "epoch 2/40 · step 30 · loss 1.2500 · 1,234 images/s"
    assert describe(STEP, EVALUATION, target).endswith("top-1 50.00% of 97.00% · at most 2 min left")


def test_durations_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (7, 89, 600, 12_000)] == ["7 s", "89 s", "10 min", "3 h 20 min"]


def test_plain_lines_tell_each_evaluation_once(tmp_path: Path) -> None:
    loaded = load_config("quickstart")
    run = Run.create(tmp_path, loaded, datetime.now(timezone.utc), {})
    out = io.StringIO()
    view = PlainLines(run, loaded.config.target, Console(file=out, width=200))
    view.tick()
    run.append(STEP)
    run.append(EVALUATION)
    view.tick()
    view.tick()
    assert out.getvalue() == "epoch 1: top-1 50.00%, loss 1.3000, 3.0 s\n"


def test_what_earlier_attempts_have_reached_is_not_told_again(tmp_path: Path) -> None:
    loaded = load_config("quickstart")
    run = Run.create(tmp_path, loaded, datetime.now(timezone.utc), {})
    run.append(EVALUATION)
    out = io.StringIO()
    view = PlainLines(run, loaded.config.target, Console(file=out, width=200))
    view.tick()
    assert out.getvalue() == ""
    run.append({**EVALUATION, "epoch": 2})
    view.tick()
    assert out.getvalue() == "epoch 2: top-1 50.00%, loss 1.3000, 3.0 s\n"


def test_a_terminal_gets_a_live_line(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "firetrain", "launch", "squeezenet-digits", "--ranks-per-node", "2"]
    options = ["--set", "target.max_epochs=2", "--set", "target.top1=0.99"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    process = subprocess.Popen([*command, *options], cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the reading end is closed
                break
        elif process.poll() is not None:
            break
    os.close(ours)
    assert process.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(
        r"epoch 2/2 · step \d+ · loss \d\.\d+ · [\d,]+ images/s · top-1 \d+\.\d\d% of 99\.00% · at most \d+ s left",
        text,
    )
    assert "target 99.00% not reached" in text
