"""The command line starts fast, and reports mistakes without a traceback and with the right exit code."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from command import Command
from recorded import record

from firetrain.cli.main import Commands, main

LOGIN_NODE = ("launch", "report", "predict", "search", "records", "topology", "strategy", "cluster", "config")
LOADED = """\
import sys
sys.argv = ["firetrain", *{arguments}]
try:
    from firetrain.cli.main import main
    main()
except SystemExit:
    pass
print(sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""


def modules(*arguments: str) -> set[str]:
    """The top-level packages that are loaded when a command ends."""
    script = LOADED.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return set(eval(done.stderr.splitlines()[-1]))


def test_help_loads_click_and_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pydantic", "yaml", "rich", "PIL", "sklearn", "importlib_metadata"}
    assert not modules("--help") & heavy
    assert not modules("launch", "--help") & heavy


def groups(group: click.Group = main) -> Iterator[click.Group]:
    yield group
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from groups(command)


@pytest.mark.parametrize(
    "words",
    [
        ("report",), ("status",), ("site", "show"), ("config", "show"), ("topology", "show"), ("launch",), ("doctor",), (),
        ("launch", "quickstart", "--site"), ("launch", "quickstart", "--nodes"), ("launch", "quickstart", "--set"),
        ("launch", "--resume"), ("report", "--clock"), ("strategy", "show"),
        ("predict", "quickstart", "--profile"), ("simulate", "quickstart", "--policies"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_argument_of_thousands_of_characters_is_told_in_short(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*words, "x" * 5000])
    assert done.exit_code == 2 and "x" * 90 in done.output and "Traceback" not in done.output
    assert "more characters)" in done.output and len(done.output) < 2500, done.output


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: you tried to allocate 8 bytes.")])
def test_memory_that_is_exhausted_is_told_in_a_line(error: Exception) -> None:
    def exhaust() -> None:
        raise error

    group = Commands("firetrain", commands=[click.Command("exhaust", callback=exhaust)])
    done = CliRunner().invoke(group, ["exhaust"])
    assert done.exit_code == 1 and done.output.startswith("firetrain: out of memory") and "Traceback" not in done.output


@pytest.mark.parametrize("words", ["launch quickstart", "train quickstart", "doctor", "report"])
def test_a_folder_that_has_been_deleted_is_told_and_no_write_is_blamed(words: str, tmp_path: Path) -> None:
    """Without one, a library of torch would end the process with a message of its own."""
    command = f'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m firetrain {words}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "firetrain: the current folder has been deleted: change to another one"


@pytest.mark.parametrize("group", list(groups()), ids=lambda group: str(group.name))
def test_the_help_of_a_group_cuts_no_sentence_in_a_terminal_of_80_columns(group: click.Group) -> None:
    told = CliRunner().invoke(group, ["--help"], terminal_width=80).output
    assert "Commands:" in told and "..." not in told.partition("Commands:")[2]


@pytest.mark.parametrize(
    "command",
    [
        "topology show ring --svg a.svg",
        "strategy show one-weird-trick --svg a.svg",
        "strategy show one-weird-trick --out a.yaml",
        "config show quickstart --curve",
        "launch quickstart --dry-run",
        "compare firecaffe --dry-run",
    ],
)
def test_json_is_refused_beside_another_form_of_output(command: str) -> None:
    done = CliRunner().invoke(main, [*command.split(), "--json"])
    assert done.exit_code == 2 and "--json: not with --" in done.output and not list(Path().iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "show", "quickstart"),
        ("topology", "show", "tree"),
        ("report",),
        ("launch", "quickstart", "--dry-run"),
        ("compare", "quickstart", "--nodes", "1,2", "--dry-run"),
        ("doctor",),
    ],
)
def test_what_runs_on_a_login_node_does_not_load_torch(arguments: tuple[str, ...]) -> None:
    loaded = modules(*arguments)
    assert "firetrain" in loaded and not loaded & {"torch", "horovod", "numpy"}


def test_a_report_of_runs_does_not_load_torch_either() -> None:
    record(Path("results"), top1=(0.5, 0.98))
    loaded = modules("report")
    assert "numpy" in loaded and not loaded & {"torch", "horovod"}


def test_no_module_for_login_nodes_loads_torch() -> None:
    """The packages above a module are loaded with it, which the contracts on imports do not see."""
    for package in map(importlib.import_module, (f"firetrain.{name}" for name in LOGIN_NODE)):
        names = [one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
        code = (
            f"import importlib, sys; [importlib.import_module(name) for name in {names}]; print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert names and done.stdout == "False\n", package.__name__


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("launch", "quikstart"), 2, "unknown config 'quikstart', did you mean quickstart?"),
        (("compare", "firecafe"), 2, "unknown config or comparison 'firecafe', did you mean firecaffe?"),
        (("launch", "./none.yaml"), 2, "no such config file: none.yaml"),
        (
            ("launch", "quickstart", "--set", "batch.global_size=x"),
            2,
            "batch.global_size: must be an integer (got 'x')",
        ),
        (
            ("launch", "quickstart", "--ranks-per-node", "0"),
            2,
            "'--ranks-per-node': 0 is not in the range 1<=x<=1048576",
        ),
        (("compare", "quickstart", "--repeats", "0"), 2, "firetrain: --repeats: must be greater than or equal to 1"),
        (("topology", "show", "rings"), 2, "unknown topology 'rings', did you mean ring?"),
        (
            ("topology", "show", "ring", "--ranks", "2", "--nodes", "3"),
            2,
            "every node needs a rank (ranks: 2, nodes: 3)",
        ),
        (("model", "show", "squeezenet11"), 2, "did you mean squeezenet1_1?"),
        (("data", "info", "lenet-mnist"), 2, "use --set data.root=FOLDER with a folder"),
        (("report", "nowhere"), 2, "nowhere is not a run's directory"),
        (("report",), 2, "no runs yet"),
        (("lunch",), 2, "No such command 'lunch'"),
        (("launch", "quickstart", "--site="), 2, "what follows --site is empty: give a value, or leave it out"),
        (("predict", "quickstart", "--profile", ""), 2, "what follows --profile is empty: give a value"),
        (("cancel", ""), 2, "an argument is empty: give a value"),
    ],
)
def test_a_mistake_is_answered_in_words(
    firetrain: Callable[..., Any], arguments: tuple[str, ...], code: int, told: str
) -> None:
    done = firetrain(*arguments)
    assert done.returncode == code
    assert told in done.stderr and "Traceback" not in done.stderr


def test_config_show_tells_origins_and_schema_is_json_schema(firetrain: Callable[..., Any]) -> None:
    shown = json.loads(firetrain("config", "show", "quickstart", "--set", "seed=7", "--json").stdout)
    assert shown["seed"] == {"value": 7, "from": "--set seed=7"}
    assert shown["reduction.name"]["from"].endswith("quickstart.yaml:9:13")
    schema = json.loads(firetrain("config", "schema").stdout)
    assert schema["additionalProperties"] is False and "learning_rate" in schema["required"]


def test_config_check_tells_all_mistakes_of_all_files(firetrain: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\n")
    (tmp_path / "b.yaml").write_text("seed: x\n")
    done = firetrain("config", "check", "quickstart", "./a.yaml", "./b.yaml")
    assert done.returncode == 2 and "quickstart: OK" in done.stdout
    assert "a.yaml:1:1: model: is required" in done.stderr and "b.yaml:1:1: seed: must be an integer" in done.stderr
    for_scripts = firetrain("config", "check", "quickstart", "./b.yaml", "--json")
    found = json.loads(for_scripts.stdout)
    assert for_scripts.returncode == 2 and found["quickstart"] == []
    assert any("b.yaml:1:1: seed: must be an integer" in mistake for mistake in found["./b.yaml"])


def test_topology_show_as_json_has_every_transfer(firetrain: Callable[..., Any]) -> None:
    rows = json.loads(firetrain("topology", "show", "tree", "--ranks", "8", "--nodes", "2", "--json").stdout)
    assert len(rows) == 14 and rows[0] == {"round": 1, "source": 1, "target": 0, "chunk": 0, "adds": True}


def test_topology_check_proves_all(firetrain: Callable[..., Any]) -> None:
    out = firetrain("topology", "check", "--ranks", "16").stdout
    assert all(f"{name}: correct for all" in out for name in ("hierarchical", "parameter-server", "ring", "tree"))
    found = json.loads(
        firetrain("topology", "check", "ring", "parameter-server:servers=4", "--ranks", "8", "--json").stdout
    )
    ring, servers = found["ring"], found["parameter-server:servers=4"]
    assert ring["faults"] == servers["faults"] == [] and ring["refused"] == 0
    assert 0 < servers["worlds"] < ring["worlds"] == servers["worlds"] + servers["refused"]


def test_models_are_listed_for_scripts(firetrain: Callable[..., Any]) -> None:
    found, shown = json.loads(firetrain("model", "list", "--json").stdout), firetrain("model", "list").stdout
    assert {"lenet", "squeezenet1_1"} <= set(found) and len(found) == len(shown.splitlines())
    assert all(line in shown for line in found.values())


def test_model_show_ends_with_totals_and_shares(firetrain: Callable[..., Any]) -> None:
    out = firetrain("model", "show", "squeezenet1_1").stdout
    assert "1,235,496" in out and "convolution: 100.0% of the parameters" in out


def test_data_info_counts_and_names_bad_files(firetrain: Callable[..., Any], tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (20, 10)).save(tmp_path / split / name / "1.png")
    (tmp_path / "train" / "dog" / "2.png").write_bytes(b"")
    done = firetrain("data", "info", "squeezenet-cifar10", "--set", "data.root=.")
    assert "2 classes: cat, dog" in done.stdout and "train: 3 images, 1 to 2 per class" in done.stdout
    assert "2.png: empty file" in done.stdout and "from 10x20 to 10x20" in done.stdout and done.returncode == 0
    for name in ("cat", "dog"):
        (tmp_path / "val" / name / "1.png").write_bytes(b"")
    done = firetrain("data", "info", "squeezenet-cifar10", "--set", "data.root=.")
    assert done.returncode == 2 and "test: not one of 2 images can be read" in done.stderr
    done = firetrain("data", "info", "squeezenet-cifar10", "--set", "data.root=.", "--json")
    assert done.returncode == 2 and len(json.loads(done.stdout)["test"]["bad"]) == 2


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("reduction.name=torus:columns=3", "torus: columns must divide the number of ranks (columns: 3, ranks: 2)"),
        ("reduction.parameters={outer: rings}", "unknown topology 'rings', did you mean ring?"),
        ("reduction.profile=none.json", "cannot read the profile"),
    ],
)
def test_a_reduction_that_does_not_fit_the_world_is_refused_before_anything_starts(
    firetrain: Command, tmp_path: Path, override: str, told: str
) -> None:
    options = ["--ranks-per-node", "1", "--nodes", "2", "--set", "reduction.name=hierarchical", "--set", override]
    done = firetrain("launch", "squeezenet-digits", *options)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()


def test_a_run_tells_what_auto_chose_for_each_bucket(firetrain: Command, tmp_path: Path) -> None:
    options = ["reduction.name=auto", "reduction.parameters={candidates: ring+tree}", "target.max_steps=2"]
    command = [word for option in options for word in ("--set", option)]
    done = firetrain("launch", "squeezenet-digits", "--ranks-per-node", "2", *command, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["reduction"]
    assert told["name"] == "auto:candidates=ring+tree" and told["from"] == "a measurement before the first step"
    assert set(told["chosen"]) == {str(size) for size in told["buckets_bytes"]}
    assert set(told["chosen"].values()) <= {"ring", "tree"}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("firetrain lau", "launch"),
        ("firetrain launch squeezenet-d", "squeezenet-digits"),
        ("firetrain resume x --dry", "--dry-run"),
    ],
)
def test_the_shell_completes_commands_configs_and_options(words: str, offered: str) -> None:
    variables = {
        "_FIRETRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = Path(sys.executable).with_name("firetrain")
    done = subprocess.run([program], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
    assert f"plain,{offered}" in done.stdout.splitlines(), done.stdout + done.stderr
