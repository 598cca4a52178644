"""The report command: which runs it finds and leaves out, how it chooses rows, and how long it takes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from command import Command
from recorded import IMAGES, TEST_IMAGES, record
from reported import report_of, seeds

from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.records import Run
from firetrain.report.against import compare
from firetrain.report.clocks import CLOCKS
from firetrain.report.groups import group
from firetrain.report.history import find, read_all
from firetrain.report.summary import headline, next_commands, where_time_went


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path: Path, firetrain: Command) -> None:
    folder = tmp_path / "results"
    record(folder, directory="good")
    half = record(folder, directory="half-written")
    with (half.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "evaluation", "st')
    for name, text in (
        ("not-json", "{"),
        ("of-a-newer-one", json.dumps({"version": 99})),
        ("a-list", "[]"),
        ("facts-only", "{}"),
    ):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (folder / "empty").mkdir()
    wrong = record(folder, directory="wrong-types")
    text = (wrong.path / "metrics.jsonl").read_text()
    (wrong.path / "metrics.jsonl").write_text(text.replace('"top1": 0.5', '"top1": "half"'))
    bad = record(folder, directory="bad-config")
    facts = bad.facts()
    facts["config"]["model"]["name"] = "nonesuch"
    bad.write("run.json", facts)
    (record(folder, directory="a-folder").path / "summary.json").unlink()
    (folder / "a-folder" / "summary.json").mkdir()
    done = firetrain("report", "--json", "--clock", "wall")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    shown = {row["run"] for row in json.loads(done.stdout)["runs"]}
    assert shown == {"good", "half-written"}
    named = {Path(line.partition(": ")[2].partition(": ")[0]).name for line in done.stderr.splitlines()}
    assert named == {"not-json", "of-a-newer-one", "a-list", "facts-only", "wrong-types", "bad-config", "a-folder"}
    assert "this firetrain reads version 1" in done.stderr
    only = firetrain("report", "results/not-json")
    assert only.returncode == 2 and "no readable run" in only.stderr and "Traceback" not in only.stderr


def test_a_run_that_still_goes_on_is_shown_as_such(tmp_path: Path, firetrain: Command) -> None:
    record(tmp_path / "results", state="running", top1=(0.4,))
    done = firetrain("report")
    assert done.returncode == 0 and "quickstart (running)" in done.stdout


def test_runs_are_named_by_path_by_folder_or_by_name(tmp_path: Path) -> None:
    one, other = record(tmp_path / "results", directory="one"), record(tmp_path / "results" / "deep", directory="other")
    (tmp_path / "results" / "group").mkdir()
    (tmp_path / "results" / "group" / "run.json").write_text("{}")
    (tmp_path / "results" / "group" / "trials").mkdir()
    results = tmp_path / "results"
    assert find([], results) == find(["one"], results) == find([str(one.path)], tmp_path) == [one]
    assert find([str(results)], results) == [other, one], "below a folder at any depth, but not what only holds trials"
    with pytest.raises(UserError, match="or a folder of runs"):
        find([str(tmp_path / "nonesuch")], results)
    with pytest.raises(UserError, match="no runs yet"):
        find([], tmp_path / "nonesuch")


def test_folders_that_are_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    results = tmp_path / "results"
    one = record(results, directory="one")
    others = 'while :; do mkdir -p "$0"/other-{1..40}/logs; rm -r "$0"/other-*; done'
    deleting = subprocess.Popen(["bash", "-c", others, str(results)])
    try:
        assert all(find([str(results)], results) == find([], results) == [one] for _ in range(300))
    finally:
        deleting.kill()
        deleting.wait()


@contextmanager
def nobody() -> Iterator[None]:
    """Context manager: be a user who may not read everything, if root runs the tests."""
    if is_root := os.geteuid() == 0:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)


def test_runs_that_may_not_be_read_are_named_and_left_out() -> None:
    with tempfile.TemporaryDirectory() as folder:  # which only root can read where pytest has its own
        results = Path(folder)
        mine, closed = record(results, directory="mine"), record(results / "theirs", directory="closed")
        results.chmod(0o755)
        closed.path.chmod(0)
        try:
            with nobody():
                for paths, below in ([folder], results), ([], closed.path.parent), (["theirs"], results):
                    said: list[str] = []
                    with suppress(UserError):
                        assert find(paths, below, said) == [mine] == find(paths, below) and paths == [folder]
                    assert said == [f"{closed.path}: cannot be read: Permission denied"]
                with pytest.raises(UserError, match="theirs/closed: cannot be read: Permission denied"):
                    find(["theirs/closed"], results, [])
                with pytest.raises(UserError, match="is not a run's directory"):
                    find(["theirs/closed"], results)
        finally:
            closed.path.chmod(0o755)


def test_rows_are_chosen_sorted_and_printed_for_other_programs(tmp_path: Path, firetrain: Command) -> None:
    seeds(tmp_path / "results")
    seeds(tmp_path / "results", "reduction.name=ring", times_s=(4.0, 5.0, 6.0))
    lines = firetrain("report", "--format", "markdown").stdout.splitlines()
    assert lines[0].startswith("| config | model |") and set(lines[1]) <= set("|-: ")
    chosen = firetrain("report", "--format", "csv", "--where", "reduction=ring", "--columns", "reduction,epochs").stdout
    assert chosen == "reduction,epochs\nring,3\n"
    either = ("--where", "reduction=ring", "--where", "reduction=tree", "--where", "epochs=3")
    both = firetrain("report", "--format", "csv", *either, "--columns", "reduction,epochs").stdout
    assert both == "reduction,epochs\ntree,3\nring,3\n"
    ordered = firetrain("report", "--each", "--format", "csv", "--sort", "time-to-accuracy s").stdout
    times = [float(row["time-to-accuracy s"]) for row in csv.DictReader(io.StringIO(ordered))]
    assert times == sorted(times) and len(times) == 6
    wrong = firetrain("report", "--columns", "epoch")
    assert wrong.returncode == 2 and "unknown column 'epoch', did you mean epochs?" in wrong.stderr


def test_energy_and_cost_are_shown_only_where_they_were_measured(tmp_path: Path) -> None:
    record(tmp_path)
    assert not {"J/image", "cost to target"} & set(report_of(tmp_path).main.text_table().headings)
    run = record(tmp_path, "quickstart", "reduction.name=ring", price_per_node_hour=36.0)
    text = (run.path / "metrics.jsonl").read_text()
    (run.path / "metrics.jsonl").write_text(text.replace('"top5"', '"energy_j": 43110.0, "top5"'))
    free, paid = report_of(tmp_path).main.rows
    assert free["J/image"] is None and paid["J/image"] == pytest.approx(43110 / (3 * IMAGES))
    assert paid["cost to target"] == pytest.approx(36 * (35 + 5) / 3600), "start-up is paid for too"


def test_five_hundred_runs_are_told_in_two_seconds_and_drawn_in_five(tmp_path: Path) -> None:
    import matplotlib.backends.backend_svg  # noqa: F401
    import scipy.stats  # noqa: F401

    from firetrain.report.page import page

    for number in range(500):
        third, seed = divmod(number, 3)
        top1 = [1 - 0.9 * 0.9**epoch for epoch in range(90)]
        record(
            tmp_path, "quickstart", f"batch.global_size={16 + third}", top1=top1, seed=seed, epoch_s=5 + third / 10 + seed,
            directory=f"run-{number}",
        )  # fmt: skip
    told, drawn = [], []
    for _ in range(3):  # the fastest run counts, because other work on the machine can only slow it down
        before_s = time.process_time()
        found = report_of(tmp_path)
        _ = found.main.text_table(), [table.text_table() for table in found.tables], found.differences, found.doubts
        told.append(time.process_time() - before_s)
        text = page(found)
        drawn.append(time.process_time() - before_s)
        assert len(found.histories) == 500 and len(found.groups) == 167 and len(text) < 5e6
        if told[-1] < 2 and drawn[-1] < 5:
            break
    assert min(told) < 2 and min(drawn) < 5, (told, drawn)


def test_the_parts_of_the_time_sum_to_the_whole(tmp_path: Path) -> None:
    summary = record(tmp_path).summary()
    parts = where_time_went(summary)
    between = next(seconds for part, seconds in parts.items() if part.name == "between steps")
    assert sum(parts.values()) == summary["elapsed_s"] and between == pytest.approx(0.0)


def test_the_headline_says_whether_the_target_was_reached(tmp_path: Path) -> None:
    def told(*overrides: str, top1: tuple[float, ...] = (0.5, 0.9, 0.98)) -> str:
        loaded = load_config("quickstart", overrides)
        recorded = record(tmp_path, "quickstart", *overrides, top1=top1)
        recorded.config_path.write_text(loaded.annotated())
        return headline(recorded)

    assert told() == "target 97.00% reached: top-1 98.00% after 3 epochs; time-to-accuracy 35.0 s"
    assert told(top1=(0.5,)) == "target 97.00% not reached: top-1 50.00% after 1 epoch, 13.0 s"
    assert told("target.top1=null") == "done: top-1 98.00% after 3 epochs, 35.0 s"
    on = told("target.train_on=true", top1=(0.98, 0.99))
    assert on == "target 97.00% reached: top-1 99.00% after 2 epochs (reached after 1 epoch); time-to-accuracy 13.0 s"


def test_two_runs_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    loaded, now = load_config("quickstart"), datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert Run.create(tmp_path, loaded, now, {}).path != Run.create(tmp_path, loaded, now, {}).path


def test_the_test_images_of_a_record_are_those_of_the_data() -> None:
    """The number of test images in the recorded runs of these tests is that of the digits."""
    from firetrain.data.catalogue import open_dataset

    dataset = open_dataset(load_config("quickstart").config.data)
    assert (len(dataset.train.labels), len(dataset.test.labels)) == (IMAGES, TEST_IMAGES)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read: No such file"), ("{", "is not a comparison's results"),
     ('{"version": 2}', "is not a comparison's results"),
     ('{"version": 7, "rows": []}', "this firetrain reads version 3")],
)  # fmt: skip
def test_a_file_that_is_no_comparison_is_told(
    content: str | None, told: str, tmp_path: Path, firetrain: Command
) -> None:
    if content is not None:
        (tmp_path / "comparison.json").write_text(content)
    done = firetrain("report", "comparison.json")
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    unfit = firetrain("report", "comparison.json", "--html", "x.html", "--each")
    assert unfit.returncode == 2 and "--html, --each: only for runs" in unfit.stderr
    for options, told in (
        (["--serve", "--plots", "x"], "--plots: not with --serve"),
        (["--export", "csv", "--html", "x"], "--html: not with --export"),
        (["--json", "--each"], "--each: no effect with JSON"),
        (["--into", "x"], "--into: only with --export"),
        (["--each", "--olympic"], "--olympic: not with --each"),
    ):
        refused = firetrain("report", *options)
        assert refused.returncode == 2 and told in refused.stderr, refused.stderr


def test_groups_are_compared_in_both_directions(tmp_path: Path) -> None:
    seeds(tmp_path)
    seeds(tmp_path, "cluster.ranks_per_node=8", times_s=(4.0, 5.0, 6.0))
    first, second = group(read_all(find([], tmp_path))[0])
    clock = CLOCKS["mlperf"]
    (there,), (back,) = compare([first, second], first, clock), compare([first, second], second, clock)
    assert there.speedup and back.speedup and there.speedup.value * back.speedup.value == pytest.approx(1)
    assert there.efficiency == pytest.approx(there.speedup.value * 4 / 8)


@pytest.mark.parametrize("override", [None, "batch.global_size=64"])
def test_what_to_run_next_is_what_ran(tmp_path: Path, override: str | None) -> None:
    """A shipped config by its name only if no option has changed it."""
    overrides = [override] if override else []
    loaded = load_config("quickstart", overrides)
    run = record(tmp_path, "quickstart", *overrides)
    run.replace_config(loaded)
    _, launch, _ = next_commands(run)
    (name,) = re.findall(r"firetrain launch (\S+) --set reduction.name=ring", launch)
    assert name == (f"{os.path.relpath(run.path)}/config.yaml" if override else "quickstart")
    assert load_config(name, []).config == loaded.config
