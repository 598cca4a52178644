"""Faults found by fuzzing, one case each, with the version that had the fault and its effect."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command import Command
from recorded import record

COMPARISON = Path(__file__).parents[2] / "results" / "comparisons" / "firecaffe" / "comparison.json"
# all in 0.1.0, and each a traceback unless stated otherwise; (arguments, expected message, exit code)
FINDS = {
    "a key below a section that does not exist": (("config", "show", "quickstart", "--set", "nothing.here=1"), "unknown key", 2),
    "a name longer than a file name may be": (("report", "x" * 5000), "is not a run's directory", 2),
    "so many nodes that memory ran out": (
        ("launch", "quickstart", "--dry-run", "--nodes", "9223372036854775808"), "is not in the range 1<=x<=1048576", 2,
    ),
    "so many nodes with so many ranks that memory ran out": (
        ("launch", "--dry-run", "--nodes", "1048576", "--ranks-per-node", "1048576", "--", "true"), "at most 1,048,576 ranks", 2,
    ),
    "a plan for a million ranks": (
        ("launch", "quickstart", "--dry-run", "--nodes", "262144", "--set", "batch.global_size=1048576",
         "--set", "reduction.name=ring"), "plans support at most 1024 ranks", 2,
    ),
    "a number of 5000 digits": (("config", "show", "quickstart", "--set", f"seed={'9' * 5000}"), "not a YAML value", 2),
    "not a number where one is asked for": (("predict", "quickstart", "--price", "nan"), "not a finite number", 2),
    "a digit that is no ASCII": (("predict", "quickstart", "--ranks", "\u00b2"), "expected a list of numbers", 2),
    "an empty name for a drawing": (("topology", "show", "tree", "--svg", ""), "what follows --svg is empty", 2),
    "a home folder of nobody": (("config", "check", "~nobody-here/x.yaml"), "no such config file", 2),
    "a site in a home folder of nobody": (
        ("launch", "quickstart", "--site", "~nobody-here/x.yaml", "--on", "slurm", "--dry-run"), "cannot be read", 2,
    ),
    "a folder of runs with a name that is too long": (("report", "--results", "x" * 300), "no runs yet", 2),
    "weights that are a FIFO": (
        ("launch", "quickstart", "--dry-run", "--set", "model.weights=fifo.pt"), "fifo.pt is not a regular file", 2,
    ),
    "weights that are a FIFO, compared": (
        ("compare", "quickstart", "--dry-run", "--set", "model.weights=fifo.pt"), "fifo.pt is not a regular file", 2,
    ),
    "weights that are none": (
        ("launch", "quickstart", "--dry-run", "--set", "model.weights=junk.pt"), "junk.pt is no file that torch.save writes", 2,
    ),
    "weights that are empty": (
        ("launch", "quickstart", "--dry-run", "--set", "model.weights=empty.pt"), "empty.pt is no file that torch.save writes", 2,
    ),
    "a folder of a comparison with a name that is too long": (
        ("compare", "quickstart", "--nodes", "1", "--repeats", "1", "--into", "x" * 300), "File name too long", 73,
    ),
    "the same, before it runs": (
        ("compare", "quickstart", "--nodes", "1", "--dry-run", "--into", "x" * 300), "File name too long", 73,
    ),
    "a folder of runs with a name that is too long, before it runs": (
        ("launch", "quickstart", "--dry-run", "--results", "x" * 300), "File name too long", 73,
    ),
    "a placement on so many ranks": (
        ("launch", "quickstart", "--dry-run", "--nodes", "262144", "--set", "batch.global_size=1048576",
         "--set", "reduction.name=native", "--set", "strategy.name=one-weird-trick"), "placements support at most 1024 ranks", 2,
    ),
    "a placement file for so many ranks": (("strategy", "check", "many.yaml", "--model", "lenet", "--image-size", "28"),
        "many.yaml: placements support at most 1024 ranks (got 1048576)", 2,
    ),
    "so many nodes to compare": (
        ("compare", "quickstart", "--dry-run", "--nodes", "9223372036854775808"), "is not from 1 to 1048576", 2,
    ),
    "images that are FIFOs": (
        ("launch", "lenet-mnist", "--set", "data.root=fifos"), "idx needs train-images, train-labels, t10k-images", 2,
    ),
    "so many ranks to predict": (
        ("predict", "quickstart", "--ranks", "9223372036854775808"), "--ranks: must be from 1 to 1048576", 2,
    ),
    "images that are folders": (
        ("launch", "lenet-mnist", "--set", "data.root=folders"), "idx needs train-images, train-labels, t10k-images", 2,
    ),
    "a list of packed images that is a FIFO": (
        ("data", "info", "squeezenet-digits", "--set", "data.name=packed", "--set", "data.root=packed"),
        "packed.json is not a regular file", 2,
    ),
    "a control character, which a terminal would obey": (
        ("launch", "lenet-mnist", "--set", 'data.root="a\\u001b[2J"'), "data.root: contains the control character \\x1b", 2,
    ),
    "a control character in an argument, repeated by the output": (
        ("report", "--results", "a\x1b[2J"), "a\\x1b[2J: contains the control character \\x1b", 2,
    ),
    "a control character in a valid value": (
        ("config", "check", "quickstart", "--set", 'name="a\\u009b"'), "name: contains the control character \\x9b", 2,
    ),
    "a placement file with another ending": (
        ("launch", "quickstart", "--dry-run", "--set", "strategy.name=junk.pt"), "must end in .yaml or .yml", 2,
    ),
    "a placement to be written with another ending": (
        ("search", "quickstart", "--ranks", "2", "--profile", "titan-k20", "--out", "placement"), "must end in .yaml or .yml", 2,
    ),
    "a drawing in a folder that is not there": (
        ("strategy", "show", "one-weird-trick", "--model", "lenet", "--svg", "nowhere/x.svg"), "there is no folder", 73,
    ),
    "a profile in a folder that is not there": (
        ("bench", "link", "--save", "nowhere/p.json"), "there is no folder", 73,
    ),
    "a plot of another kind": (("bench", "allreduce", "--plot", "p.txt"), "must end in .svg or .png", 2),
    "plots in a file": (
        ("simulate", "quickstart", "--plots", "fifo.pt"), "fifo.pt is not a folder", 73,
    ),
    "a policy twice": (("simulate", "quickstart", "--policies", "async,async"), "expected different names", 2),
    "a strategy twice": (
        ("bench", "strategies", "quickstart", "--strategies", "pipeline,pipeline"), "--strategies pipeline,pipeline: expected", 2,
    ),
    "a strategy that places nothing": (
        ("bench", "strategies", "quickstart", "--strategies", "parameter-server"), "places no model on ranks", 2,
    ),
    "no policy": (("simulate", "quickstart", "--policies", ""), "what follows --policies is empty", 2),
    "a comparison in a FIFO": (
        ("compare", "quickstart", "--nodes", "1", "--dry-run", "--into", "fifo.pt"), "fifo.pt is not a folder", 73,
    ),
    "a key of a thousand levels": (
        ("config", "show", "quickstart", "--set", f"{'.'.join('a' * 1200)}=1"), "expected section.key=value", 2,
    ),
    "a key of a section that is optional": (
        ("config", "show", "quickstart", "--set", "provenance.soruce=1"), "unknown key, did you mean source? (valid: ", 2,
    ),
    "a model in the program itself": (
        ("launch", "quickstart", "--dry-run", "--set", "model.name=__main__:main", "--set", "model.stem=null"),
        "no module __main__", 2,
    ),
    "epochs of a batch beyond every number": (
        ("predict", "quickstart", "--ranks", "1,2", "--images", "9", "--epochs", f"1{'0' * 400}:64"),
        "of at most 16777216 images", 2,
    ),
    "plots of a comparison in a folder with a name that is too long": (
        ("report", str(COMPARISON), "--plots", "x" * 300), "File name too long", 73,
    ),
    "a profile that is a folder": (("predict", "quickstart", "--profile", "folder.json"), "cannot read the profile", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FINDS)
def test_it_is_told_in_words(name: str, firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.pt")
    (tmp_path / "junk.pt").write_text("junk\n")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "many.yaml").write_text("ranks: 1048576\ndefault: {images: 1048576}\n")
    (tmp_path / "fifos").mkdir()
    for part in ("train-images", "train-labels", "t10k-images", "t10k-labels"):
        os.mkfifo(tmp_path / "fifos" / part)
        (tmp_path / "folders" / part).mkdir(parents=True)
    (tmp_path / "packed").mkdir()
    os.mkfifo(tmp_path / "packed" / "packed.json")
    arguments, told, code = FINDS[name]
    done = firetrain(*arguments, limit_s=20)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "changes"),
    [("summary.json", {"attempts": None}), ("summary.json", {"top1": [1]}), ("summary.json", {"elapsed_s": "x"}),
     ("run.json", {"machine": "x86"}), ("run.json", {"jobs": 3}), ("run.json", {"warnings": 1})],
)  # fmt: skip
def test_a_damaged_record_is_named_and_left_out(
    name: str, changes: dict[str, object], tmp_path: Path, firetrain: Command
) -> None:
    """In 0.1.0 `firetrain report` and `status` ended in AttributeError and TypeError."""
    record(tmp_path / "results", directory="whole")
    path = record(tmp_path / "results", directory="damaged").path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    done = firetrain("report")
    (key,) = changes
    assert done.returncode == 0 and f"skipped: {path.parent}: {path}: damaged, {key} is" in done.stderr, done.stderr
    assert "quickstart" in done.stdout
    told = firetrain("status", str(path.parent))
    assert told.returncode == 2 and "damaged" in told.stderr and "Traceback" not in told.stderr


def test_a_damaged_line_of_metrics_is_named(tmp_path: Path, firetrain: Command) -> None:
    """In 0.1.0 a step that is a list ended the report in TypeError."""
    run = record(tmp_path / "results")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    (run.path / "metrics.jsonl").write_text(
        "\n".join([lines[0], '{"kind": "evaluation", "step": []}', *lines[1:]]) + "\n"
    )
    done = firetrain("report", "--json")
    assert done.returncode == 2 and "metrics.jsonl:2: damaged" in done.stderr and "Traceback" not in done.stderr
