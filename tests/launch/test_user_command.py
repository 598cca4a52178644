"""Any command runs as ranks, with the folder, logs, state and stop of a run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command import Command
from launched import wait_for

SCRIPT = """\
import os, sys, time
from pathlib import Path
import beside  # a file in the script's own folder
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"rank {rank} of {ranks}, local {os.environ['LOCAL_RANK']} on node {os.environ['GROUP_RANK']}: {sys.argv[1:]}", flush=True)
run, mark = Path(os.environ["FIRETRAIN_RUN"]), Path(os.environ["FIRETRAIN_STOP"])
if "gather" in sys.argv:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    mine = torch.tensor([float(rank)])
    dist.all_reduce(mine)
    print("sum", mine.item(), flush=True)
    dist.destroy_process_group()
if "fail" in sys.argv and rank == 1:
    if "late" in sys.argv:
        (run / "checkpoints" / "step.txt").write_text("7")
    sys.exit(3)
if "raise" in sys.argv:  # as in a script that knows nothing of firetrain
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    mine = torch.tensor([float(rank)])
    dist.all_reduce(mine)
    if rank == 1:
        dist.destroy_process_group()
        time.sleep(1)  # the others have ended long before
        raise ValueError("of rank 1 alone")
    while True:
        dist.all_reduce(mine)
if "work" in sys.argv:
    saved = run / "checkpoints" / "step.txt"
    step = int(saved.read_text()) if saved.exists() else 0
    print("begins at", step, flush=True)
    while not mark.exists() and step < 1000 and not ("short" in sys.argv and step >= 3):
        step += 1
        time.sleep(0.02)
    if rank == 0:
        saved.write_text(str(step))
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").touch()


def run_of(folder: Path) -> Path:
    (run,) = (folder / "results").iterdir()
    return run


def test_a_rank_that_torch_ends_because_its_threads_still_run_is_told_how_to_end_them(
    firetrain: Command, tmp_path: Path
) -> None:
    """As torch does to about half of the ranks that end without having destroyed their process groups."""
    script = "import os, sys\nprint('done')\nprint('terminate called without an active exception', file=sys.stderr)\nos.abort()\n"
    (tmp_path / "aborts.py").write_text(script)
    done = firetrain("launch", "--ranks-per-node", "1", "--", sys.executable, "aborts.py", limit_s=60)
    assert "rank 0 failed first: killed by signal 6 (SIGABRT); its threads still ran when it ended" in done.stderr
    assert "destroy_process_group()" in done.stderr and done.stderr.rstrip().endswith("| done"), done.stderr


def test_the_rank_that_failed_is_named_and_not_those_that_lost_it(firetrain: Command) -> None:
    done = firetrain("launch", "--ranks-per-node", "3", "--", sys.executable, "train.py", "raise", limit_s=60)
    assert done.returncode == 1 and "rank 1 failed first: exit code 1" in done.stderr, done.stderr
    assert "ValueError: of rank 1 alone" in done.stderr


def test_ranks_find_each_other_and_their_output_is_shown(firetrain: Command, tmp_path: Path) -> None:
    words = ("--nodes", "2", "--ranks-per-node", "1", "--", sys.executable, "train.py", "gather", "--lr", "0.1")
    done = firetrain("launch", *words, limit_s=60)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2, local 0 on node 0: ['gather', '--lr', '0.1']" in done.stdout and "sum 1.0" in done.stdout
    assert "completed after" in done.stdout and run_of(tmp_path).name.startswith("train-")
    assert "rank 1 of 2, local 0 on node 1" in firetrain("logs", str(run_of(tmp_path)), "--rank", "1").stdout
    assert firetrain("status", str(run_of(tmp_path))).stdout.strip().endswith(": completed")
    assert "no runs yet" in firetrain("report").stderr
    told = firetrain("watch", str(run_of(tmp_path)))
    assert told.returncode == 2 and "is the run of a command, which has no config" in told.stderr, told.stderr
    other = firetrain("launch", "--resume", str(run_of(tmp_path)), "--nodes", "1")
    assert "not with --resume, which keeps the run's settings; to change them, launch the command again" in other.stderr
    resumed = firetrain("launch", "--resume", str(run_of(tmp_path)))
    assert resumed.returncode == 0 and "is complete: nothing to resume" in resumed.stdout


@pytest.mark.parametrize(
    ("content", "mode", "word", "told"),
    [
        ("#!/bin/sh\n", 0o644, "./mine", "./mine is not executable: chmod +x ./mine, or bash ./mine"),
        ("#!/bin/sh\n", 0o755, "mine", "no such program in PATH"),
        (
            "#!/no/such/interpreter -u\n",
            0o755,
            "./mine",
            "its first line names /no/such/interpreter, which does not exist",
        ),
        ("echo hello\n", 0o755, "./mine", "does not say in its first line, by #!, what is to run it"),
        ("", 0o755, "./other", "no such program"),
        ("", 0o755, "python other.py", "other.py: no such file (looked from "),
    ],
)
@pytest.mark.parametrize("where", [(), ("--dry-run",), ("--on", "slurm", "--dry-run")])
def test_what_cannot_be_executed_is_told_before_anything_is_started(
    firetrain: Command, tmp_path: Path, content: str, mode: int, word: str, told: str, where: tuple[str, ...]
) -> None:
    (tmp_path / "mine").write_text(content)
    (tmp_path / "mine").chmod(mode)
    done = firetrain("launch", *where, "--", *word.split())
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()


def test_the_first_failed_rank_is_named_and_the_others_end(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain(
        "launch",
        "--ranks-per-node",
        "2",
        "--name",
        "mine",
        "--",
        sys.executable,
        "train.py",
        "fail",
        "work",
        limit_s=60,
    )
    assert done.returncode == 1 and "rank 1 failed first: exit code 3; the other rank was stopped" in done.stderr
    assert run_of(tmp_path).name.startswith("mine-")
    assert "failed: rank 1 failed first: exit code 3" in firetrain("status", str(run_of(tmp_path))).stdout


@pytest.mark.parametrize(("words", "is_told"), [(("fail",), False), (("fail", "late"), True)])
def test_a_failed_command_that_has_saved_something_is_told_how_to_go_on(
    words: tuple[str, ...], is_told: bool, firetrain: Command, tmp_path: Path
) -> None:
    done = firetrain("launch", "--ranks-per-node", "2", "--", sys.executable, "train.py", *words, "work", limit_s=60)
    told = firetrain("status", str(run_of(tmp_path))).stdout
    assert done.returncode == 1 and ("--resume" in done.stderr) == ("--resume" in told) == is_told, (done.stderr, told)


LOSING = """\
import time
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
reducer = Reducer("ring")
reducer.sum_(torch.ones(9))
if dist.get_rank() == 1:
    reducer.close()  # as a rank does that ends by an error, which may take longer than the other one
    time.sleep(1)
    raise ValueError("mine")
reducer.sum_(torch.ones(9))
"""


def test_a_rank_whose_reducer_lost_another_one_is_not_the_first_that_failed(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "losing.py").write_text(LOSING)
    done = firetrain("launch", "--ranks-per-node", "2", "--", sys.executable, "losing.py", limit_s=60)
    assert done.returncode == 1 and "rank 1 failed first: exit code 1" in done.stderr, done.stderr
    assert "ValueError: mine" in done.stderr


LEAVING = """\
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from firetrain.ddp import Reducer, hook
dist.init_process_group("gloo")
model, reducer = DistributedDataParallel(torch.nn.Linear(4, 4)), Reducer("ring")
model.register_comm_hook(reducer, hook)
for step in range(9):
    if dist.get_rank() == 1 and step == 5:
        sys.exit(0)
    model(torch.ones(8, 4)).sum().backward()
"""


def test_a_rank_that_left_the_others_is_named_with_what_they_lost(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    done = firetrain("launch", "--ranks-per-node", "2", "--", sys.executable, "leaving.py", limit_s=60)
    assert done.returncode == 1, done.stderr
    told = done.stderr.partition("\nlast lines of")[0]
    assert "rank 0 failed first: exit code 1; rank 0 lost rank 1 in" in told
    assert told.endswith("; rank 1 ended with exit code 0"), told
    assert "rank 0 lost rank 1 in" in firetrain("status", str(run_of(tmp_path))).stdout


def test_it_is_stopped_by_a_file_and_goes_on_from_what_it_saved(firetrain: Command, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "firetrain", "launch", "--", sys.executable, "train.py", "work"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: list(tmp_path.glob("results/*/attempt-0/logs/rank-0000.log")), "the rank has started")
        log = run_of(tmp_path) / "attempt-0" / "logs" / "rank-0000.log"
        wait_for(lambda: "begins at 0" in log.read_text(), "the script works")
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=30)
    finally:
        launcher.kill()
    assert launcher.returncode == 130 and "to resume: firetrain launch --resume" in out, out
    run = run_of(tmp_path)
    step = int((run / "checkpoints" / "step.txt").read_text())
    assert step > 0 and json.loads((run / "run.json").read_text())["state"] == "stopped"
    assert "# 1 rank" in firetrain("launch", "--resume", str(run), "--dry-run").stdout
    launcher = subprocess.Popen([*command[:4], "--resume", str(run)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: (run / "attempt-1" / "logs" / "rank-0000.log").exists(), "the second attempt has started")
        wait_for(
            lambda: f"begins at {step}" in (run / "attempt-1" / "logs" / "rank-0000.log").read_text(), "it goes on"
        )
        told = json.loads(firetrain("cancel", str(run), "--json").stdout)
        assert told["state"] == "running" and "by the file that FIRETRAIN_STOP names" in told["told"]
        out, _ = launcher.communicate(timeout=30)
    finally:
        launcher.kill()
    assert launcher.returncode == 0 and "stopped on request" in out, out


def test_a_command_whose_terminal_is_closed_may_still_save(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "firetrain", "launch", "--", sys.executable, "train.py", "work"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    try:
        wait_for(lambda: list(tmp_path.glob("results/*/attempt-0/logs/rank-0000.log")), "the rank has started")
        log = run_of(tmp_path) / "attempt-0" / "logs" / "rank-0000.log"
        wait_for(lambda: "begins at 0" in log.read_text(), "the script works")
        os.close(terminal)  # from now on, writing to it is an error
        launcher.send_signal(signal.SIGHUP)
        launcher.wait(30)
    finally:
        launcher.kill()
    run = run_of(tmp_path)
    assert json.loads((run / "run.json").read_text())["state"] == "stopped"
    assert int((run / "checkpoints" / "step.txt").read_text()) > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--", "no-such-program"), "no-such-program: no such program"),
        (("--set", "seed=2", "--", "true"), "--set: not with -- COMMAND"),
        (("quickstart", "--", "true"), "CONFIG: not with -- COMMAND"),
        (("true", "--", "true"), "CONFIG: not with -- COMMAND"),
        (("quickstart", "other", "--", "true"), "CONFIG: not with -- COMMAND"),
        (("quickstart", "--name", "x"), "--name: only with -- COMMAND"),
        (("--requeue", "never", "--", "true"), "--requeue: only with --on slurm"),
        (("--name", "a b", "--", "true"), "--name a b: a run's name has up to 64 letters"),
        (("--nodes", "4096", "--", "true"), "ranks can run on one machine"),
        (("quickstart", "true"), "one CONFIG at a time"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    words: tuple[str, ...], told: str, firetrain: Command, tmp_path: Path
) -> None:
    done = firetrain("launch", *words)
    assert done.returncode == 2 and told in done.stderr and not (tmp_path / "results").exists(), done.stderr


def test_a_dry_run_shows_the_command(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("launch", "--ranks-per-node", "3", "--dry-run", "--", "echo", "two words")
    assert done.stdout == "# 3 ranks on 1 node on this machine; nothing was started\necho 'two words'\n"
    assert not (tmp_path / "results").exists()


def test_what_rank_0_prints_without_an_end_of_line_is_shown(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text("print('half\\rwhole\\rdone', end='')\n")
    done = firetrain("launch", "--", sys.executable, "bar.py")
    assert done.returncode == 0 and "half\rwhole\rdone" in done.stdout.replace("\n", "\r"), done.stdout


def test_json_has_the_state_of_the_run_and_no_lines_of_logs(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("print('a line')\n")
    done = firetrain("launch", "--json", "--", sys.executable, "short.py")
    assert json.loads(done.stdout)["state"] == "completed"
    on_slurm = ("--on", "slurm", "--site", "generic", "--follow", "--json", "--", sys.executable, "short.py")
    done = firetrain("launch", *on_slurm)
    assert done.returncode == 2 and "--follow and --json exclude each other" in done.stderr


def test_requeueing_that_slurm_would_do_itself_is_asked_for_only_if_wanted(firetrain: Command) -> None:
    words = ("launch", "--on", "slurm", "--site", "generic", "--nodes", "2", "--dry-run")
    command = ("--", sys.executable, "train.py")
    assert "#SBATCH --requeue\n" in firetrain(*words, *command).stdout
    never = firetrain(*words, "--requeue", "never", *command).stdout
    assert "#SBATCH --no-requeue\n" in never and "--requeues-left $((0 -" in never
    done = firetrain(*words, "--requeue", "always", "--segments", "3", *command)
    assert done.returncode == 2 and "a chain of jobs (--segments) is not requeued" in done.stderr


def test_a_run_whose_folder_is_gone_is_not_resumed(firetrain: Command, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "train.py").write_text("raise SystemExit(1)\n")
    words = [sys.executable, "-m", "firetrain", "launch", "--results", str(tmp_path / "results"), "--", sys.executable]
    subprocess.run([*words, "train.py"], cwd=there, capture_output=True, check=False)
    (there / "train.py").unlink()
    there.rmdir()
    before = (run_of(tmp_path) / "run.json").read_text()
    for more in ((), ("--dry-run",)):
        done = firetrain("launch", "--resume", str(run_of(tmp_path)), *more)
        assert done.returncode == 2 and f"no folder {there}, where the command is run" in done.stderr, done.stderr
    assert (run_of(tmp_path) / "run.json").read_text() == before and not (run_of(tmp_path) / "attempt-1").exists()


def test_a_script_may_use_firetrain_itself(firetrain: Command, tmp_path: Path) -> None:
    """What it starts is no rank, and does not end because the launcher is not its parent."""
    (tmp_path / "run.sh").write_text(
        f"{sys.executable} -m firetrain topology list > topologies-$RANK.txt && echo done\n"
    )
    done = firetrain("launch", "--ranks-per-node", "2", "--", "bash", "run.sh", limit_s=60)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
    assert all("ring" in (tmp_path / f"topologies-{rank}.txt").read_text() for rank in (0, 1))


def test_commands_do_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "firetrain",
        "launch",
        "--ranks-per-node",
        "2",
        "--",
        sys.executable,
        "train.py",
        "work",
    ]
    launcher = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ranks() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (entry / "environ").read_bytes()
                ended = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if f"FIRETRAIN_RENDEZVOUS={tmp_path}".encode() in variables and not ended:
                    found.append(int(entry.name))
        return found

    wait_for(lambda: len(ranks()) == 2, "both ranks work")
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not ranks(), "all ranks gone", 10)


def test_a_program_of_the_site_s_modules_need_not_be_here(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("description: own\nmodules: [mine/1.0]\n")
    (tmp_path / "plain.yaml").write_text("description: plain\n")
    for command in ("launch", "compare"):
        words = (command, "--on", "slurm", "--dry-run", "--site")
        there = firetrain(*words, "./own.yaml", "--", "of-a-module", "train.py")
        assert there.returncode == 0, there.stderr
        nowhere = firetrain(*words, "./plain.yaml", "--", "of-a-module", "train.py")
        assert nowhere.returncode == 2 and "of-a-module: no such program in PATH" in nowhere.stderr, nowhere.stderr
