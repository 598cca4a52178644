"""Horovod as a reduction: its own features. The contract of all reductions is tested with the other reductions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from needs import HOROVOD, need
from ranks import on_ranks

from firetrain.errors import UserError
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.transport import Transport

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _installed() -> None:
    need(None if HOROVOD else "Horovod is not installed (make horovod)")


def refusals(transport: Transport) -> dict[str, str]:
    told = {}
    for name in ("horovod:op=mean", "horovod:op=adasum", "horovod:algorithm=torus", "horovod:algorithm=ring"):
        try:
            find_reduction(name, Context(transport))
        except UserError as error:
            told[name] = str(error)
    return told


def test_what_horovod_cannot_do_is_refused_with_the_reason() -> None:
    told = on_ranks(3, refusals)[0]
    assert "op is sum or adasum" in told["horovod:op=mean"]
    assert "power of two" in told["horovod:op=adasum"] and "ranks: 3" in told["horovod:op=adasum"]
    assert "built without" in told["horovod:algorithm=torus"]
    assert "algorithm hierarchical or torus" in told["horovod:algorithm=ring"]
    assert "mpirun" in on_ranks(2, refusals)[0]["horovod:op=adasum"]


def halves(transport: Transport) -> list[float]:
    reduction = find_reduction("horovod", Context(transport, wire_dtype="float16"))
    buffer = torch.full((1000,), 0.1 * (transport.rank + 1))
    reduction.start(Bucket(buffer)).wait()
    reduction.close()
    return [float(buffer.min()), float(buffer.max())]


def test_half_the_bytes_on_the_wire() -> None:
    for low, high in on_ranks(2, halves):
        assert low == high != 0.3 and abs(low - 0.3) < 2e-4


def again(transport: Transport) -> list[float]:
    """Sums by two Horovod reductions at the same time, and by a third after both were closed."""
    pair = [find_reduction("horovod", Context(transport)) for _ in range(2)]
    sums = []
    for reduction in pair:
        buffer = torch.ones(10)
        reduction.start(Bucket(buffer)).wait()
        reduction.close()
        sums.append(float(buffer[0]))
    last, buffer = find_reduction("horovod", Context(transport)), torch.ones(10)
    last.start(Bucket(buffer)).wait()
    last.close()
    return [*sums, float(buffer[0])]


def test_it_can_be_closed_and_made_again() -> None:
    assert on_ranks(2, again) == [[2.0, 2.0, 2.0]] * 2


def environment() -> dict[str, str]:
    """An environment for one process per rank on a small machine, over loopback, without a launcher's variables."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD", "OMPI", "PMI", "FIRETRAIN_R"))
    }
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def train(results: Path, name: str) -> list[str]:
    options = [f"reduction.name={name}", "target.max_steps=3", "target.top1=null", "log.every_steps=1"]
    sets = [part for option in options for part in ("--set", option)]
    return [sys.executable, "-m", "firetrain", "train", "squeezenet-digits", *sets, "--results", str(results)]


def test_horovodrun_starts_it_and_ranks_meet_through_its_store(tmp_path: Path) -> None:
    horovodrun = str(Path(sys.executable).parent / "horovodrun")
    done = subprocess.run(
        [horovodrun, "--gloo", "-np", "2", *train(tmp_path, "horovod")],
        capture_output=True, text=True, timeout=120, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 ranks on 1 node over gloo, reduction horovod" in done.stdout


def test_adasum_under_mpirun_lies_between_the_mean_and_the_sum(tmp_path: Path) -> None:
    """Adasum adds two orthogonal gradients, and averages two equal ones (Maleki et al. 2020, section 3)."""
    need(None if shutil.which("mpirun") else "no mpirun here (Debian: openmpi-bin)")
    script = tmp_path / "adasum.py"
    script.write_text(
        "import sys, torch\n"
        "from firetrain.cluster import identify\n"
        "from firetrain.reduction.catalogue import find_reduction\n"
        "from firetrain.reduction.interface import Bucket\n"
        "from firetrain.transport.rendezvous import connect\n"
        "from firetrain.reduction.context import Context\n"
        "transport = connect(identify(), 'gloo', 60)\n"
        "reduction = find_reduction('horovod:op=adasum', Context(transport))\n"
        "same, other = torch.tensor([3.0, 4.0]), torch.eye(2)[transport.rank] * 2\n"
        "for buffer in (same, other):\n"
        "    reduction.start(Bucket(buffer)).wait()\n"
        "if transport.rank == 0: print('SUMS', same.tolist(), other.tolist(), reduction.facts()['controller'])\n"
        "transport.barrier(); transport.close()\n"
    )
    command = ["mpirun", "-np", "2", "--oversubscribe", sys.executable, str(script)]
    root = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29731",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment() | root)
    if "built with MPI" in done.stderr:
        need("this Horovod was built without MPI")
    assert done.returncode == 0, done.stderr
    # the caller divides by the images of both ranks, so the mean [3, 4] must be returned twice as large
    assert "SUMS [6.0, 8.0] [4.0, 4.0] mpi" in done.stdout, done.stdout + done.stderr
