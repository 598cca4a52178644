"""Our optimisers do without torch's compiler, whose import takes as long as that of the rest of torch."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from firetrain.optim.{module} import {name}

weight = torch.nn.Parameter(torch.ones(2, 3))
optimizer = {name}([{{"params": [weight]}}], {options})
weight.grad = torch.ones(2, 3)
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
assert weight.grad is None and optimizer.state_dict()["state"]
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [("Lars", "momentum=0.9, weight_decay=0.1, trust_coefficient=0.1"), ("Lamb", "weight_decay=0.1")],
)
def test_an_optimiser_does_not_import_the_compiler(name: str, options: str) -> None:
    script = SCRIPT.format(module=name.lower(), name=name, options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
