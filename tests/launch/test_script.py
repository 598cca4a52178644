"""The script of a job: its header is complete, its values are quoted for bash, and it equals the shipped examples."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import need

from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.launch.job import JobSettings, request_of
from firetrain.launch.script import Request, script
from firetrain.launch.site import Site, load_site

EXAMPLES = Path(__file__).parents[2] / "slurm" / "examples"
RUN = Path("/shared/results/squeezenet-digits-20260102-030405-1a2b3c4d")
GPUS = {"description": "an example", "gpus": {"request": "gres", "type": "a100"}, "cpus_per_rank": 8}


def site(**values: Any) -> Site:
    return Site.model_validate(values, strict=False)


REQUESTS = {
    "srun": Request(RUN, World.even(4, 2), load_site("testbed"), {"LABEL": "it's $5"}, python="/env/bin/python"),
    "torchrun": Request(RUN, World.even(2, 4), site(**GPUS, launcher="torchrun"), python="/env/bin/python"),
    "mpirun": Request(RUN, World.even(2, 4), site(**GPUS, launcher="mpirun"), python="/env/bin/python"),
    "horovodrun": Request(
        RUN, World.even(2, 4), site(**GPUS, launcher="horovodrun", interface="ib0"), python="/env/bin/python"
    ),
    "comparison": Request(
        RUN, World.even(2, 4), site(**GPUS), python="/env/bin/python", trials=True, name="firecaffe-2x4-1a2b3c4d"
    ),
    "segments": Request(
        RUN, World.even(2, 4), site(**GPUS, modules=["cuda/12"], memory="64G", infiniband=["mlx5_0:1"]), segments=3,
        python="/env/bin/python",
    ),
    "parameter-server": Request(
        RUN, World.even(4, 2), load_site("testbed"), python="/env/bin/python", expendable=range(1, 8)
    ),
    "pyxis": Request(
        RUN, World.even(2, 4), site(**GPUS, container={"runtime": "pyxis", "image": "docker://a/b:1", "mounts": ["/data:/data"]}),
        python="/env/bin/python",
    ),
    "apptainer": Request(
        RUN, World.even(2, 4), site(**GPUS, container={"runtime": "apptainer", "image": "/images/my image.sif"}),
        python="/env/bin/python",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_the_examples_are_what_would_be_submitted(name: str) -> None:
    path, text = EXAMPLES / f"{name}.sh", script(REQUESTS[name])
    if os.environ.get("FIRETRAIN_WRITE_EXAMPLES"):
        path.write_text(text)
    assert text == path.read_text(), (
        "if the change is meant: FIRETRAIN_WRITE_EXAMPLES=1 pytest tests/launch/test_script.py"
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_bash_and_shellcheck_have_nothing_to_say(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script(REQUESTS[name]))
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    need(None if shutil.which("shellcheck") else "no shellcheck (Debian: shellcheck)")
    done = subprocess.run(["shellcheck", "--severity=warning", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", REQUESTS)
def test_the_header_is_complete_before_the_first_command(name: str) -> None:
    request, lines = REQUESTS[name], script(REQUESTS[name]).splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    header = {
        key: (shlex.split(value) or [""])[0]
        for line in lines[:first]
        if (found := re.match(r"#SBATCH --([a-z-]+)=?(.*)$", line))
        for key, value in [found.groups()]
    }
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert header["nodes"] == str(len(request.world.nodes)) and header["job-name"] == (request.name or RUN.name)
    tasks = int(header["ntasks-per-node"]) * int(header["cpus-per-task"])
    assert tasks == request.ranks_per_node * request.site.cpus_per_rank
    assert header["signal"] == f"B:USR1@{request.site.signal_lead_s}" and header["open-mode"] == "append"
    assert ("requeue" in header) != ("no-requeue" in header) and ("no-requeue" in header) == (
        request.segments > 1 or request.trials
    )
    assert header["output"] == f"{RUN}/job-%j.log"
    if request.site.gpus.request == "gres":
        assert header["gres"] == "gpu:a100:4"


VALUES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\0"), max_size=40)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_any_value_reaches_the_process_unchanged(value: str, folder: str) -> None:
    run = Path("/results") / (folder.replace("/", "-") or "x")
    text = script(Request(run, World.even(1, 1), load_site("testbed"), {"VALUE": value}))
    lines = [line for line in text.split("\n") if line.startswith(("export VALUE=", "run="))]
    assert len(lines) == 2
    code = "\n".join([*lines, "export run", "env --null"])
    done = subprocess.run(["bash", "-uc", code], capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    found = done.stdout.decode().split("\0")
    assert f"VALUE={value}" in found and f"run={run}" in found


def test_a_job_of_one_node_is_looked_at_too_before_its_ranks_start() -> None:
    for wanted in (True, False):
        text = script(Request(RUN, World.even(1, 1), site(description="small", preflight=wanted)))
        assert ("-m firetrain preflight " in text and " --expect-version " in text) is wanted


def test_a_command_runs_in_the_container_in_its_own_folder() -> None:
    box = {"runtime": "apptainer", "image": "/images/my image.sif", "mounts": ["/data:/data"]}
    request = Request(
        RUN, World.even(2, 4), site(**GPUS, container=box), command=("python", "train.py"), folder="/home/me"
    )  # fmt: skip
    (line,) = re.findall(r"^srun(?:.*\\\n)*.* train\.py &$", script(request), re.MULTILINE)
    words = shlex.split(line.replace("\\\n", " "))
    assert words.count("apptainer") == 1
    inside = words[words.index("apptainer") :]
    binds = [inside[place + 1] for place, word in enumerate(inside) if word == "--bind"]
    assert binds == ["/data:/data", str(RUN), "/home/me"] and inside[inside.index("--pwd") + 1] == "/home/me"
    assert inside.index("/images/my image.sif") < inside.index("train.py")
    pyxis = site(**GPUS, container={**box, "runtime": "pyxis"})
    boxed = Request(RUN, World.even(2, 4), pyxis, command=("python", "train.py"), folder="/home/me")
    assert f"/data:/data,{RUN}:{RUN},/home/me:/home/me" in script(boxed)


def test_the_folders_of_code_of_one_s_own_are_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("def net(classes): pass\n")
    loaded = load_config("quickstart", [f"model.name={tmp_path}/nets.py:net", "model.stem=null"])
    box = {"runtime": "pyxis", "image": "/images/my image.sif"}
    chosen = JobSettings(site(**GPUS, container=box), "mine", {}, (), {})
    assert f"--container-mounts={RUN}:{RUN},{tmp_path}:{tmp_path}" in script(request_of(loaded, RUN, chosen))


def test_data_that_are_not_on_the_login_node_are_told_and_who_checks_the_nodes(
    firetrain: Command, tmp_path: Path
) -> None:
    """They may be on the nodes only."""
    (tmp_path / "unchecked.yaml").write_text("description: here\npreflight: false\n")
    words = (
        "launch",
        "quickstart",
        "--on",
        "slurm",
        "--dry-run",
        "--set",
        "data.name=idx",
        "--set",
        "data.root=nowhere",
    )
    for site, told in (
        ("generic", "the preflight will check the nodes"),
        ("./unchecked.yaml", "the nodes are not checked"),
    ):
        done = firetrain(*words, "--site", site)
        assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash"), done.stderr
        assert "note: on this machine, data.root" in done.stderr and told in done.stderr, done.stderr
