"""Every input gives a documented exit code and a message; thousands of inputs, the same in every run."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import compressed_files
import inputs
import pytest
from click.testing import CliRunner

from firetrain.cli.main import main
from firetrain.launch.attempt import Attempt

DOCUMENTED = {0, 1, 2, 69, 70, 71, 73, 74, 75, 78, 130, 143}
LIMIT_S = 20
MOST_BYTES = 3 << 30
# for longer searches, other inputs and more of them
SEED, OFTEN = int(os.environ.get("FIRETRAIN_FUZZ_SEED", "1")), int(os.environ.get("FIRETRAIN_FUZZ_OFTEN", "7"))


@pytest.fixture(autouse=True)
def _safe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Isolate the commands: no ranks, no Slurm, limited memory."""

    def started(command: list[str], attempt: Attempt) -> None:
        raise Started

    monkeypatch.setattr("firetrain.launch.attempt.run_ranks", started)
    monkeypatch.setattr("firetrain.launch.local.run_ranks", started)
    monkeypatch.setenv("PATH", "/nowhere")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module", autouse=True)
def _within_a_minute() -> Iterator[None]:
    """All inputs together take less than a minute of a processor, also beside other tests."""
    began_s = time.process_time()
    yield
    assert time.process_time() - began_s < 60 * OFTEN / 7


class Started(Exception):
    """Raised in place of starting ranks: the input was accepted."""


class Late(BaseException):
    """Raised after the time limit; no error handler catches it."""


@contextmanager
def _in_time() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(command: list[str]) -> str:
    """The fault in a command's answer; empty if there is none."""
    try:
        with _in_time():
            done = CliRunner().invoke(main, command, catch_exceptions=True)
    except Late:
        return f"no answer within {LIMIT_S} s"
    if "(--debug shows the traceback)" in done.stderr:
        return f"an OSError that nobody dealt with: {done.stderr.strip()}"
    if done.exception and not isinstance(done.exception, SystemExit | Started):
        return f"{type(done.exception).__name__}: {done.exception}"
    if done.exit_code not in DOCUMENTED and not isinstance(done.exception, Started):
        return f"exit code {done.exit_code}"
    if done.exit_code and not isinstance(done.exception, Started) and not (done.stderr or done.stdout).strip():
        return f"exit code {done.exit_code} without a word"
    return ""


def hold(faults: dict[str, str], counted: int, least: int) -> None:
    told = "\n".join(f"{command}\n    {what}" for command, what in list(faults.items())[:20])
    assert not faults, f"{len(faults)} of {counted} inputs:\n{told}"
    assert counted >= least


def test_every_option_takes_odd_values(tmp_path: Path) -> None:
    inputs.shipped_record(tmp_path)
    shutil.copytree(tmp_path / "results" / "run", tmp_path / "run")
    (tmp_path / "images").mkdir()
    commands = list(inputs.odd_options(random.Random(SEED), OFTEN))
    faults = {inputs.shown(command): found for command in commands if (found := fault(command))}
    hold(faults, len(commands), 1500)


def test_options_of_commands_that_are_not_run_are_parsed() -> None:
    """A value is taken or refused by click, which ends with exit code 2."""
    tried = 0
    for command, arguments in inputs.odd_arguments_of_others(random.Random(SEED), OFTEN):
        with suppress(click.UsageError):
            command.make_context(command.name, arguments, resilient_parsing=False)
        tried += 1
    assert tried >= 40


def test_every_key_of_a_config_takes_odd_values() -> None:
    commands = list(inputs.odd_overrides(random.Random(SEED), OFTEN))
    faults = {inputs.shown(command): found for command in commands if (found := fault(command))}
    hold(faults, len(commands), 700)


def test_files_may_hold_anything(tmp_path: Path) -> None:
    faults = {}
    for number, (content, command) in enumerate(inputs.odd_files(random.Random(SEED), 75 * OFTEN)):
        (tmp_path / "mine.yaml").write_bytes(content)
        if found := fault(command):
            faults[f"{number} {inputs.shown(command)} of {content[:2000]!r}"] = found
    hold(faults, 75 * OFTEN, 500)


def test_records_may_be_damaged_anywhere(tmp_path: Path) -> None:
    whole = inputs.shipped_record(tmp_path)
    faults = {}
    for number, (record, command) in enumerate(inputs.odd_records(random.Random(SEED), 60 * OFTEN, whole)):
        for place, content in record.items():
            path = tmp_path / place
            if not path.is_file() or path.read_bytes() != content:  # also after a command that has changed it
                path.write_bytes(content)
        changed = [place for place, content in record.items() if content != whole[place]]
        if found := fault(command):
            faults[f"{number} {inputs.shown(command)} with another {changed}"] = found
    hold(faults, 60 * OFTEN, 400)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_records_may_be_no_files(make: Callable[[Path], None], tmp_path: Path) -> None:
    faults, counted = {}, 0
    for number, (place, content) in enumerate(inputs.shipped_record(tmp_path).items(), make is os.mkdir):
        (tmp_path / place).unlink()
        make(tmp_path / place)
        # every other command, and the rest for the next file, and for the other kind
        for command in [*inputs.READERS, ["cancel", "results/run"]][number % 2 :: 2]:
            counted += 1
            if found := fault(command):
                faults[f"{inputs.shown(command)} with {place}"] = found
        (tmp_path / place).rename(tmp_path / f"old-{len(list(tmp_path.iterdir()))}")
        (tmp_path / place).write_bytes(content)
    hold(faults, counted, 100)


def test_every_command_is_tried_or_says_why_not() -> None:
    assert {words for words, _ in inputs.commands()} == set(inputs.ARGUMENTS)


def test_compressed_models_may_be_anything(tmp_path: Path) -> None:
    draw, content, faults = random.Random(SEED), compressed_files.whole(), {}
    (tmp_path / "mine.fire").write_bytes(content)
    for command in compressed_files.COMMANDS:
        assert fault(command) == "", "a whole one"
    (tmp_path / "weights.pt").unlink()  # otherwise nothing would be opened
    for number in range(40 * OFTEN):
        (tmp_path / "mine.fire").write_bytes(compressed_files.changed(content, draw))
        command = draw.choice(compressed_files.COMMANDS)
        if found := fault(command):
            faults[f"{number} {inputs.shown(command)}"] = found
        (tmp_path / "weights.pt").unlink(missing_ok=True)
    hold(faults, 40 * OFTEN, 250)
