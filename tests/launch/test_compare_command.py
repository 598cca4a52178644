"""The reductions are compared in a script of the user's own, which names none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command

SCRIPT = """\
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from firetrain.ddp import Reducer, hook
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
if "plain" not in sys.argv:
    reducer = Reducer("tree" if "named" in sys.argv else None)
    model.register_comm_hook(reducer, hook)
for step in range(int(sys.argv[1])):
    model(torch.ones(8, 64)).sum().backward()
print("the script has ended", flush=True)
"""
SUMS = """\
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
reducer = Reducer()
first, second = torch.ones(1000), torch.ones(1000)
while True:
    reducer.sum_(first)
    reducer.sum_(second, 1)
"""
AT_THE_START = """\
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from firetrain.ddp import Reducer, hook
dist.init_process_group("gloo")
model, reducer = DistributedDataParallel(torch.nn.Linear(64, 64)), Reducer()
for _ in range(4):
    reducer.sum_(torch.ones(1000))
model.register_comm_hook(reducer, hook)
while True:
    time.sleep(0.02)
    model(torch.ones(8, 64)).sum().backward()
"""
GROUPS = """\
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
reducer, ones = Reducer(group=pairs[dist.get_rank() % 2]), torch.ones(1000)
while True:
    dist.all_reduce(ones)
    reducer.sum_(ones)
"""
UNEQUAL = """\
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
first = dist.new_group([0, 1])
if dist.get_rank() < 2:
    Reducer(group=first)
Reducer()
"""
ONE_NODE = ("--nodes", "1", "--ranks-per-node", "2", "--repeats", "1")


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sums.py").write_text(SUMS)
    (tmp_path / "groups.py").write_text(GROUPS)


def rows(done: Any) -> dict[str, dict[str, Any]]:
    return {row["reduction"]: row for row in json.loads(done.stdout)["rows"]}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_each_trial_ends_with_its_last_timed_step(firetrain: Command, tmp_path: Path) -> None:
    words = ("--reductions", "native,ring", *ONE_NODE, "--steps", "12", "--warmup-steps", "3", "--json")
    done = firetrain("compare", *words, "--", sys.executable, "train.py", "1000000", limit_s=120)
    assert done.returncode == 0, done.stderr
    found = rows(done)
    assert set(found) == {"native", "ring"} and all(row["place"] for row in found.values())
    assert all(0 < row["exposed_communication_s"] < row["value_s"] for row in found.values()), found
    trials = sorted((tmp_path / "results" / "comparisons" / "train" / "1x2" / "trials").iterdir())
    assert len(trials) == 2
    for trial in trials:
        assert [line["step"] for line in lines(trial)] == list(range(1, 16))
        assert json.loads((trial / "run.json").read_text())["reduction"] in trial.name
    again = firetrain("compare", *words, "--", sys.executable, "train.py", "1000000")
    assert again.returncode == 0 and "all trials are done" in again.stderr and rows(again) == found
    (tmp_path / "train.py").write_text(SCRIPT.replace("64", "32"))
    changed = firetrain("compare", *words, "--", sys.executable, "train.py", "1000000")
    assert changed.returncode == 2 and "train.py has changed since trials were run with it" in changed.stderr, (
        changed.stderr
    )


def test_steps_of_a_script_without_backward_passes_begin_with_the_same_sum(firetrain: Command, tmp_path: Path) -> None:
    words = ("--reductions", "ring", *ONE_NODE, "--steps", "10", "--json")
    done = firetrain("compare", *words, "--", sys.executable, "sums.py", limit_s=120)
    assert done.returncode == 0, done.stderr
    (trial,) = (tmp_path / "results" / "comparisons" / "sums" / "1x2" / "trials").iterdir()
    assert [line["step"] for line in lines(trial)] == list(range(1, 16))
    # almost all of a step is sums, of both tensors
    assert rows(done)["ring"]["exposed_communication_s"] > 0.5 * rows(done)["ring"]["value_s"]


def test_sums_before_the_first_backward_pass_are_no_steps(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AT_THE_START)
    words = ("compare", "--reductions", "ring", *ONE_NODE, "--steps", "5", "--warmup-steps", "1")
    done = firetrain(*words, "--json", "--", sys.executable, "train.py", limit_s=120)
    assert done.returncode == 0, done.stderr
    (trial,) = (tmp_path / "results" / "comparisons" / "train" / "1x2" / "trials").iterdir()
    steps = [line["step_s"] for line in lines(trial)]
    assert len(steps) == 6 and min(steps) > 0.02, steps


def test_a_script_that_was_mended_is_compared_and_one_that_changes_between_trials_is_told(
    firetrain: Command, tmp_path: Path
) -> None:
    words = ("compare", "--reductions", "native,ring", *ONE_NODE, "--steps", "5", "--", sys.executable)
    without = firetrain(*words, "train.py", "100", "plain", limit_s=120)
    assert without.returncode == 2 and "add two lines" in without.stderr
    (tmp_path / "train.py").write_text(SCRIPT.replace('"plain" not in', '"plain" in'))
    mended = firetrain(*words, "train.py", "100", "plain", limit_s=120)
    assert mended.returncode == 0, mended.stderr
    (tmp_path / "growing.py").write_text("open('growing.py', 'a').write('# more')\n" + SCRIPT)
    growing = firetrain(*words, "growing.py", "10", limit_s=120)
    assert growing.returncode == 1 and "the script has changed since trials before this one" in growing.stdout


def test_groups_of_ranks_with_reducers_of_their_own_are_recorded_once(firetrain: Command, tmp_path: Path) -> None:
    words = (
        "--reductions",
        "ring",
        "--nodes",
        "1",
        "--ranks-per-node",
        "4",
        "--repeats",
        "1",
        "--steps",
        "10",
        "--json",
    )
    done = firetrain("compare", *words, "--", sys.executable, "groups.py", limit_s=120)
    assert done.returncode == 0, done.stderr
    (trial,) = (tmp_path / "results" / "comparisons" / "groups" / "1x4" / "trials").iterdir()
    assert [line["step"] for line in lines(trial)] == list(range(1, 16))


def test_ranks_whose_first_reducers_differ_are_told(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "unequal.py").write_text(UNEQUAL)
    words = ("--reductions", "ring", "--nodes", "1", "--ranks-per-node", "3", "--repeats", "1")
    done = firetrain("compare", *words, "--", sys.executable, "unequal.py", limit_s=120)
    assert done.returncode == 1
    assert "the Reducer of rank 2 is their first one, but not that of the ranks that share it" in done.stdout


def test_a_script_without_a_reducer_is_told_which_lines_to_add(firetrain: Command) -> None:
    words = ("--reductions", "native,ring", *ONE_NODE)
    done = firetrain("compare", *words, "--", sys.executable, "train.py", "3", "plain", limit_s=120)
    assert done.returncode == 2
    assert "model.register_comm_hook(Reducer(), hook)" in done.stderr and "Traceback" not in done.stderr


def test_a_script_that_names_its_reduction_itself_is_told_so(firetrain: Command) -> None:
    words = ("--reductions", "ring", *ONE_NODE)
    done = firetrain("compare", *words, "--", sys.executable, "train.py", "3", "named", limit_s=120)
    assert done.returncode == 1
    assert "names its reduction itself, tree, so that the comparison cannot choose ring" in done.stdout


def test_a_script_that_ends_before_a_timed_step_fails(firetrain: Command) -> None:
    words = ("--reductions", "ring", *ONE_NODE)
    done = firetrain("compare", *words, "--", sys.executable, "train.py", "4", limit_s=120)
    assert done.returncode == 1
    assert "ended after step 4, and the first 5 are not timed: lower --warmup-steps" in done.stdout


SAVING = """\
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
reducer, saved = Reducer(), Path(os.environ["FIRETRAIN_RUN"]) / "checkpoints" / "saved"
assert not saved.exists(), "the trial does not begin anew"
for step in range(9):
    reducer.sum_(torch.ones(1000))
if dist.get_rank() == 0:
    saved.write_text("9")
if os.path.exists("fails"):
    sys.exit(3)
while True:
    reducer.sum_(torch.ones(1000))
"""


def test_a_trial_that_failed_begins_anew_without_what_its_script_has_saved(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(SAVING)
    (tmp_path / "fails").touch()
    words = ("compare", "--reductions", "ring", *ONE_NODE, "--steps", "20", "--into", "found", "--json", "--",
             sys.executable, "saving.py")  # fmt: skip
    assert firetrain(*words).returncode != 0 and list(tmp_path.glob("found/*/trials/*/checkpoints/saved"))
    (tmp_path / "fails").unlink()
    done = firetrain(*words)
    assert done.returncode == 0, done.stderr
    assert rows(done)["ring"]["value_s"] > 0


FAILING = """\
import torch, torch.distributed as dist
from firetrain.ddp import Reducer
dist.init_process_group("gloo")
reducer = Reducer()
for step in range(9):
    reducer.sum_(torch.ones(1000))
if dist.get_rank() == 1:
    reducer.close()
    raise KeyError("mine")
reducer.sum_(torch.ones(1000))
"""


def test_the_rank_that_failed_is_named_and_not_the_one_that_lost_it(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    words = ("--reductions", "ring", *ONE_NODE, "--json")
    done = firetrain("compare", *words, "--", sys.executable, "failing.py", limit_s=120)
    told = rows(done)["ring"]["note"]
    assert "rank 1 failed first: exit code 1" in told and told.endswith("KeyError: 'mine'"), told


def test_a_trial_of_fewer_steps_than_were_asked_for_is_told(firetrain: Command) -> None:
    words = ("--reductions", "ring", *ONE_NODE, "--steps", "400", "--json")
    done = firetrain("compare", *words, "--", sys.executable, "train.py", "20", limit_s=120)
    assert done.returncode == 0, done.stderr
    assert rows(done)["ring"]["note"] == "15 of 400 steps were timed: the script ended"


def test_options_of_a_config_are_refused(firetrain: Command) -> None:
    for option, value in (("--set", "seed=2"), ("--strategies", "pipeline"), ("--reductions", "auto")):
        done = firetrain("compare", option, value, "--", sys.executable, "train.py")
        assert done.returncode == 2 and option in done.stderr, done.stderr


def test_an_unknown_reduction_is_told_with_those_that_a_command_can_have(firetrain: Command) -> None:
    done = firetrain("compare", "--reductions", "rign", "--", sys.executable, "train.py")
    assert done.returncode == 2 and "unknown reduction 'rign', did you mean ring?" in done.stderr, done.stderr
    valid = done.stderr.partition("(valid: ")[2]
    assert "halving-doubling" in valid and "auto" not in valid
