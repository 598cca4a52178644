"""Times the steps of a script of the user's own, on whose device sums may still be running when their call has returned."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store as get_default_store

from firetrain.cluster import SystemClock
from firetrain.errors import FiretrainError, UserError
from firetrain.records.script_steps import TRIAL_STEPS, ScriptSteps
from firetrain.transport.device import now, synchronize
from firetrain.transport.transport import Transport
from firetrain.words import named

_END = "firetrain has ended on rank "
_is_used = False


def clock_of_script(transport: Transport) -> ScriptClock | None:
    """The clock of this process' script; None if no comparison asks for it, and for all callers but the first.

    In a comparison it is collective over the ranks of `transport`. UserError on all of them if the trial cannot be opened, or if
    only some of them have a clock already.
    """
    global _is_used
    if not os.environ.get(TRIAL_STEPS):
        return None
    steps, mistake = None, ""
    if not _is_used:
        try:
            steps = ScriptSteps.of_environment(os.environ, transport.identity.rank)
        except FiretrainError as error:
            mistake = str(error)
    found = transport.gather_objects((mistake, _is_used))
    if mistake := next((one for one, _ in found if one), ""):
        raise UserError(mistake)
    late = [
        transport.members[place] if transport.members else place for place, (_, used) in enumerate(found) if not used
    ]
    if 0 < len(late) < len(found):
        raise UserError(
            f"the Reducer of {named(late, 'rank')} is their first one, but not that of the ranks that share it: in a comparison "
            "all of them must begin with it"
        )
    _is_used = True
    return ScriptClock(transport, steps) if steps else None


class ScriptClock:
    """Records each step with the time for which the script waited for sums.

    A step is a backward pass. In scripts that have none with the hook it lies between two sums with the same key, which is the
    first one that comes again; such steps are forgotten when the first pass comes. The host waits for the device at the ends of
    passes and sums.
    """

    def __init__(self, transport: Transport, steps: ScriptSteps) -> None:
        self._transport, self._steps, self._clock = transport, steps, SystemClock()
        self._has_passes, self._is_first, self._sums_s = False, False, 0.0
        self._seen: set[Any] = set()
        self._of_a_step: Any = None

    def computed(self) -> tuple[Any, float]:
        """To be called when the last gradients of a pass have been issued; what `end_pass` is to be called with."""
        self._is_first = not self._has_passes
        self._has_passes = True
        return now(self._transport.device), self._clock.now_s()

    def end_pass(self, computed: tuple[Any, float]) -> None:
        """End a step after all sums of a pass."""
        synchronize(self._transport.device)
        if self._is_first and self._of_a_step is not None:
            self._steps.begin_again()  # in the middle of a step, of which sums have taken the beginning
        else:
            self._end(self._clock.now_s() - computed[1])

    def wait(self, computed: tuple[Any, float]) -> tuple[Any, float]:
        """Wait until the device has computed the gradients of a pass; `computed` with the time at which it had."""
        if computed[0] is None:
            return computed
        computed[0].synchronize()
        return None, self._clock.now_s()

    def begin_sum(self, key: Any) -> float:
        """When a sum begins, which ends the step before if that began with the same key."""
        if self._has_passes:
            return 0.0
        synchronize(self._transport.device)
        if self._of_a_step is None and key in self._seen:
            self._of_a_step = key
        if key == self._of_a_step:
            self._end(self._sums_s)
            self._sums_s = 0.0
        self._seen.add(key)
        return self._clock.now_s()

    def end_sum(self, began_s: float) -> None:
        """End a sum that began at `began_s`."""
        if not self._has_passes:
            synchronize(self._transport.device)
            self._sums_s += self._clock.now_s() - began_s

    def _end(self, exposed_s: float) -> None:
        """Record a step. The trial ends the process with its last one, whatever the script would do next."""
        if self._steps.end(exposed_s, tentative=not self._has_passes):
            self._meet()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _meet(self) -> None:
        """Wait for all ranks of the script: none may leave while another one still receives."""
        self._transport.barrier()
        if self._transport.members:  # other groups of ranks have reducers of their own
            store, ranks = get_default_store(), range(dist.get_world_size())
            store.set(f"{_END}{self._transport.identity.rank}", "")
            with suppress(dist.DistError):  # the rank that has the store leaves first
                store.wait([f"{_END}{rank}" for rank in ranks], timedelta(seconds=self._transport.timeout_s))
