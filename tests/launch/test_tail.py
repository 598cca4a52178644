"""Following growing logs, finding free ports, and estimating the time of a comparison."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from recorded import record

from firetrain.launch.port import free_port
from firetrain.launch.tail import Tail, log_tail


def test_a_line_is_told_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    run = record(tmp_path)
    run.begin_attempt()
    tail = Tail(run, 0)
    assert tail.new() == []
    run.log(0).write_text("one\ntw")
    assert tail.new() == ["one"]
    assert tail.new() == []
    with run.log(0).open("a") as file:
        file.write("o\nthree\n")
    assert tail.new() == ["two", "three"]


def test_a_new_attempt_is_announced_after_the_rest_of_the_one_before(tmp_path: Path) -> None:
    run = record(tmp_path)
    run.begin_attempt()
    tail = Tail(run, 1)
    run.log(1).write_text("first\n")
    assert tail.new() == ["first"]
    with run.log(1).open("a") as file:
        file.write("last words\n")
    run.begin_attempt()
    run.log(1).write_text("again\n")
    assert tail.new() == ["last words", "--- attempt-1 ---", "again"]


def test_bytes_that_are_no_text_are_shown_and_end_nothing(tmp_path: Path) -> None:
    run = record(tmp_path)
    run.begin_attempt()
    run.log(0).write_bytes(b"caf\xe9\nfine\n")
    assert Tail(run, 0).new() == ["caf�", "fine"]
    assert log_tail(run.log(0)) == ["caf�", "fine"]


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100)))
    assert log_tail(tmp_path / "log", 3) == ["97", "98", "99"]
    assert log_tail(tmp_path / "none") == []


def test_a_free_port_is_one_that_nobody_listens_at() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        number = taken.getsockname()[1]
        assert free_port(number, number) is None
        told = subprocess.run(
            [sys.executable, "-m", "firetrain.launch.port", str(number), str(number)], capture_output=True, text=True
        )
        assert told.returncode == 1 and f"no free port from {number} to {number}" in told.stderr
    assert free_port(number, number) == number


def test_ports_are_chosen_at_random_so_that_jobs_on_one_node_seldom_meet() -> None:
    assert len({free_port(20_000, 29_999) for _ in range(20)}) > 10
