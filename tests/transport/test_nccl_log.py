"""What NCCL chose is read from its log, which is kept only if the user has not arranged one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firetrain.transport import nccl_log

LOG = """\
node1:71:71 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}
node1:71:71 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node1:71:71 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node1:71:71 [0] NCCL INFO Broadcast: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
"""
SIZES = {4096, 8192, 1048576}


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_each_choice_for_buckets_of_these_sizes_is_named_once() -> None:
    assert nccl_log.choices(LOG, SIZES) == ["RING/LL128", "TREE/LL"]
    assert nccl_log.choices(LOG, {1048576}) == ["RING/LL128"]
    assert nccl_log.choices("", SIZES) == []


def test_a_log_that_is_kept_is_read_back() -> None:
    nccl_log.keep()
    assert os.environ["NCCL_DEBUG"] == "INFO" and os.environ["NCCL_DEBUG_SUBSYS"] == "TUNING"
    assert nccl_log.used(SIZES) == [], "NCCL has written nothing yet"
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(LOG)
    assert nccl_log.used(SIZES) == ["RING/LL128", "TREE/LL"]


def test_a_user_s_own_log_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    nccl_log.keep()
    assert os.environ["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_FILE" not in os.environ
    assert nccl_log.used(SIZES) == []
