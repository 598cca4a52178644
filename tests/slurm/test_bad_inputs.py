"""Mistakes give one clear message with advice and an exit code; nothing is submitted, and no file is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import slurm

SITE = "description: a test\npartition: debug\nnode_local: [/dev/shm]\n"

# (options, content of a site file if any, expected message)
MISTAKES = [
    (["--nodes", "0"], "", "'--nodes': 0 is not in the range 1<=x<=1048576"),
    (["--nodes", "-1"], "", "'--nodes': -1 is not in the range"),
    (["--nodes", "many"], "", "'many' is not a valid integer"),
    (["--ranks-per-node", "0"], "", "'--ranks-per-node': 0 is not in the range"),
    (["--nodes", "5"], "", "5 nodes requested, but partition debug has 4"),
    (["--ranks-per-node", "17"], "", "17 processors per node requested"),
    (["--time", "1:30"], "", "got '1:30'"),
    (["--time", "90"], "", "for instance 01:30:00"),
    (["--time", "00:00:00"], "", "means no limit to Slurm"),
    (["--time", "00:61:00"], "", "[days-]hours:minutes:seconds"),
    (["--time", "abc"], "", "--time abc"),
    (["--time", ""], "", "--time"),
    (["--time", "02:00:00"], "", "exceeds the limit 01:00:00 of partition debug"),
    (["--time", "1-00:00:00"], "", "exceeds the limit"),
    (["--partition", "debgu"], "", "unknown partition 'debgu', did you mean debug? (valid: debug, high, low)"),
    (["--partition", "de bug"], "", "partition: must match"),
    (["--partition", "de\nbug"], "", "partition: must match"),
    (["--partition", "-debug"], "", "partition: must match"),
    (["--account", "a b"], "", "account: must match"),
    (["--qos", "x;rm"], "", "qos: must match"),
    (["--site", "tesbed"], "", "unknown site 'tesbed', did you mean testbed?"),
    (["--site", "./nothing.yaml"], "", "cannot be read"),
    ([], SITE + "particion: x\n", "unknown key, did you mean partition?"),
    ([], SITE + "ports: [1, 2, 3]\n", "ports"),
    ([], SITE + "ports: [30000, 20000]\n", "the smaller first (got 30000, 20000)"),
    ([], SITE + "memory: 1.5G\n", "memory: must match"),
    ([], SITE + "memory: 5000G\n", "5120000 MiB of memory per node requested"),
    (["--ranks-per-node", "5"], SITE + "gpus: {request: gpus-per-node}\n", "5 GPUs per node requested"),
    ([], SITE + "gpus: {type: a100}\n", "type has no effect here"),
    ([], SITE + "constraint: infiniband\n", "unknown constraint in partition debug 'infiniband'"),
    ([], SITE + "launcher: torchrun\nmpi: pmix\n", "mpi has no effect here (only with launcher: srun)"),
    ([], SITE + "signal_lead_s: 70000\n", "signal_lead_s: must be less than or equal to 65535"),
    ([], SITE + "interface: 'a b'\n", "interface: must match"),
    ([], SITE + "setup: ['a\n\n b']\n", "setup"),
    ([], SITE + "host_suffix: '; reboot'\n", "host_suffix: must match"),
    ([], "partition: [", "not YAML"),
    ([], "partition: debug\n", "description: is required"),
    (["--env", "NOTHING"], "", "expected NAME=VALUE"),
    (["--env", "1A=x"], "", "expected NAME=VALUE"),
    (["--env", "A=x\ny"], "", "contains a newline"),
    (["--env", "WANDB_TOKEN=123", "--env", "B"], "", "use --pass-env WANDB_TOKEN\n"),
    (["--env", "my_api_key=123"], "", "looks like a secret"),
    (["--env", "RANK=3"], "", "--env RANK: the launcher sets it"),
    (["--env", "FIRETRAIN_STOP=x"], "", "--env FIRETRAIN_STOP: the launcher sets it"),
    (["--pass-env", "NOT_SET_HERE"], "", "--pass-env NOT_SET_HERE: not set here"),
    (["--segments", "0"], "", "0 is not in the range"),
    (["--segments", "1000"], "", "1000 is not in the range"),
    (["--set", "name=a/b"], "", "name: must match"),
    (["--set", 'name="a\\nb"'], "", "name: must match"),
    (["--results", "/dev/shm/runs"], "", "which the site lists as local to each node"),
    (["--results", "a\nb"], "", "contains a newline"),
    (["--results", "/dev/null/runs"], "", "cannot write to /dev/null"),
    (["--set", "reduction.name=rng"], "", "did you mean ring?"),
    (["--set", "reduction.name=torus:columns=3"], "", "columns"),
    (["--on", "slrum"], "", "'slrum' is not one of"),
    (["--on", "local"], "", "--site: only with --on slurm"),
]


def quickstart(
    *options: str, folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The quickstart for the test cluster, started in a folder."""
    command = [
        sys.executable,
        "-m",
        "firetrain",
        "launch",
        "quickstart",
        "--on",
        "slurm",
        "--site",
        "testbed",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, env=environment)


@pytest.mark.parametrize(("options", "site", "says"), MISTAKES, ids=[str(number) for number in range(len(MISTAKES))])
def test_a_mistake_is_told_and_leaves_nothing(options: list[str], site: str, says: str, tmp_path: Path) -> None:
    own = []
    if site:
        (tmp_path / "own.yaml").write_text(site)
        own = ["--site", str(tmp_path / "own.yaml")]
    before = slurm("squeue", "-h", "-t", "all", "-o", "%i")
    folder = ["--results", str(tmp_path / "results")]
    done = quickstart("--nodes", "2", *folder, *own, *options, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert slurm("squeue", "-h", "-t", "all", "-o", "%i") == before
    left = {path.name for path in tmp_path.iterdir()} - {"own.yaml", "sabotage"}
    assert not left and not Path("/dev/shm/runs").exists()


def test_several_mistakes_are_told_together(tmp_path: Path) -> None:
    options = ["--nodes", "9", "--ranks-per-node", "20", "--time", "03:00:00", "--results", "/dev/shm/x"]
    told = quickstart(*options, folder=tmp_path).stderr
    assert all(part in told for part in ("/dev/shm", "exceeds the limit", "9 nodes requested")), told


def test_without_slurm_it_is_said_and_a_dry_run_needs_none(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "git"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools)}
    environment.pop("SLURM_CONF")
    done = quickstart(folder=tmp_path, environment=environment)
    assert done.returncode == 69 and "this is not a Slurm node; use --on local" in done.stderr
    dry = quickstart("--dry-run", folder=tmp_path, environment=environment)
    assert dry.returncode == 0 and dry.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert {path.name for path in tmp_path.iterdir()} <= {"bin", "sabotage"}


def test_what_is_named_reaches_the_ranks_and_nothing_else_does(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed import gone, launch, until

    monkeypatch.setenv("MY_TOKEN", "hunter2-0815")
    monkeypatch.setenv("MY_OTHER_TOKEN", "hunter2-4711")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (results.parent / "probe").mkdir(parents=True)
    (results.parent / "probe" / "sitecustomize.py").write_text(
        "import json, os, sys\nif 'train' in sys.argv: print('VARIABLES', json.dumps(dict(os.environ)), flush=True)\n"
    )
    run = launch(
        results, "--nodes", "1", "--ranks-per-node", "1", "--set", "target.max_steps=1", "--pass-env", "MY_TOKEN",
        "--env", "PROBE=1", "--env", f"PYTHONPATH={results.parent / 'probe'}",
    )  # fmt: skip
    until(lambda: run.summary() and gone(run))
    log = run.log(0)
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("VARIABLES ")]
    found = json.loads(line.removeprefix("VARIABLES "))
    log.unlink()  # written by the test itself
    assert found["MY_TOKEN"] == "hunter2-0815" and found["PROBE"] == "1"
    assert not {"MY_OTHER_TOKEN", "PYTHONDONTWRITEBYTECODE", "PYTEST_CURRENT_TEST"} & found.keys()
    assert {"HOME", "PATH", "SLURM_JOB_ID"} <= found.keys(), "what starts programs anywhere"
    secret = b"hunter2"
    assert not [path for path in run.path.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_variables_that_do_not_travel_are_told_and_one_value_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("OMP_PROC_BIND", "true")

    def told(*options: str) -> str:
        return quickstart("--dry-run", *options, folder=tmp_path).stderr

    left_behind = re.search(r"note: set here but not passed to the job: (.+) \(--pass-env NAME passes one on\)", told())
    assert left_behind and {"NCCL_DEBUG", "OMP_PROC_BIND"} <= set(left_behind[1].split(", "))
    some = told("--pass-env", "NCCL_DEBUG", "--env", "OMP_PROC_BIND=false")
    assert "NCCL_DEBUG" not in some and "OMP_PROC_BIND" not in some
    assert "give only one of them" in told("--pass-env", "NCCL_DEBUG", "--env", "NCCL_DEBUG=WARN")
