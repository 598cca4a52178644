"""The example is trained with every kind of reduction, by torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


def trained(*words: str, **variables: str) -> list[float]:
    """The losses that the example prints on two ranks."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLE),
        *words,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]


def test_losses_fall_and_are_those_of_every_exact_reduction() -> None:
    native = trained()
    assert len(native) == 4 and native[-1] < 0.5 * native[0]
    assert trained("ring") == pytest.approx(native, rel=1e-3)
    assert trained(FIRETRAIN_REDUCTION="tree") == pytest.approx(native, rel=1e-3)
