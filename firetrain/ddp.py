"""The reductions in any script that trains with torch: a communication hook for DistributedDataParallel.

    reducer = Reducer("ring")
    model = DistributedDataParallel(model)
    model.register_comm_hook(reducer, hook)

torch compares the annotations of `hook` with classes, so that this module does not postpone their evaluation.
"""

import atexit
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from firetrain.config.names import check_reduction
from firetrain.config.spec import Spec
from firetrain.errors import FiretrainError, LostPeer, UserError, unknown
from firetrain.limits import LEAST_WAIT_S, MOST_SECONDS
from firetrain.records.lost_peer import mark_lost_peer
from firetrain.records.profile import Profile
from firetrain.records.script_steps import REDUCTION, refuse_chosen
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import SUMMED, Bucket, Pending, Reduction
from firetrain.reduction.wire import WIRE_DTYPES
from firetrain.transport.attached import attach
from firetrain.transport.device import is_gpu, issued_on, new_stream, use_in_this_thread
from firetrain.transport.script_clock import ScriptClock, clock_of_script
from firetrain.transport.transport import Transport

__all__ = ["REDUCTION", "Reducer", "hook"]

_CONVERTED = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Known:
    """A bucket of torch's and the bucket that is reduced: the same memory, or for 16-bit gradients a copy in float32."""

    flat: Tensor
    bucket: Bucket

    def is_of(self, flat: Tensor, shapes: tuple[torch.Size, ...]) -> bool:
        same = self.flat.data_ptr() == flat.data_ptr() and self.flat.dtype == flat.dtype and len(self.flat) == len(flat)
        return same and self.bucket.shapes == shapes


@dataclass(frozen=True)
class _Started:
    """A bucket whose sum has been started."""

    known: _Known
    pending: Pending
    summed: Future[Tensor]


class Reducer:
    """Sums gradients over the ranks of a process group by one of firetrain's reductions.

    - `reduction`: `name` or `name:key=value,...`; default: the variable FIRETRAIN_REDUCTION, or native.
    - `group`: the process group of the ranks; default: all ranks.
    - `profile`: file with a table of measured reductions (`firetrain bench allreduce --save`), which `auto` needs.
    - `wire_dtype`: bfloat16, float16, or float32, which rounds nothing.
    - `timeout_s`: longest time to wait for another rank, in seconds.

    A model needs a reducer of its own. It connects the ranks when it is made, or, if there is no process group yet, when it is
    first used; that is collective over the ranks, as is `close`. UserError if there is no such reduction, or if it does not
    fit these ranks. LostPeer if a rank is lost: in a backward pass torch raises a RuntimeError with its text, and all later
    calls raise the LostPeer; on GPUs the process says so and ends with exit code 69. In a trial of `firetrain compare`, the
    first reducer of a process records the script's steps.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> reducer = Reducer("ring")
    >>> reducer.sum_(torch.ones(3))
    tensor([1., 1., 1.])
    >>> reducer.close()
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        reduction: str | None = None,
        group: dist.ProcessGroup | None = None,
        profile: str | Path | None = None,
        wire_dtype: str = "float32",
        timeout_s: float = 300.0,
    ) -> None:
        if not isinstance(reduction, str | None):
            raise UserError(
                f"Reducer takes the name of a reduction, such as 'ring' (got {type(reduction).__name__}); a model is given to "
                "DistributedDataParallel, and the reducer to its register_comm_hook(reducer, hook)"
            )
        if not (isinstance(timeout_s, int | float) and LEAST_WAIT_S <= timeout_s <= MOST_SECONDS):
            raise UserError(f"timeout_s must be a number from {LEAST_WAIT_S:g} to {MOST_SECONDS:g} (got {timeout_s!r})")
        refuse_chosen(reduction)
        self._name = reduction or os.environ.get(REDUCTION) or "native"
        check_reduction(Spec.parse(self._name))
        if wire_dtype not in WIRE_DTYPES:
            raise UserError(unknown("wire dtype", wire_dtype, WIRE_DTYPES))
        self._group, self._wire_dtype, self._timeout_s = group, wire_dtype, timeout_s
        self._profile = Profile.load(Path(profile)) if profile else None
        self._waiter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reducer")
        self._known: dict[int, _Known] = {}
        self._parameters: set[int] = set()
        self._single: dict[tuple[int, int, torch.dtype], Bucket] = {}
        self._started: list[_Started] = []
        self._step = self._passes = 0
        self._is_connected = self._is_closed = False
        self._error: FiretrainError | None = None
        if dist.is_available() and dist.is_initialized():
            self._connect()  # now, so that mistakes are found before training
        self._at_exit = partial(_close, ref(self))
        atexit.register(self._at_exit)

    def _connect(self) -> None:
        """Connect the ranks, if they are not; UserError if the reduction does not fit them, or if they want different ones."""
        if self._is_connected:
            return
        try:
            self._reduction, self._clock  # noqa: B018
        except BaseException:
            self._disconnect()
            raise
        self._is_connected = True

    def start(self, given: GradBucket) -> Future[Tensor]:
        """Start to sum a bucket; the future has its mean over the ranks, as DistributedDataParallel expects.

        FiretrainError if its gradients have no type that can be summed, if they are on another device than the process group
        communicates from, or if another model uses this reducer; then all later calls raise it again.
        """
        self._raise_earlier()
        self._connect()
        with self._keeping_errors():
            self._refuse_another_model(given)
            known = self._bucket_of(given)
            if known.bucket.buffer is not known.flat:
                known.bucket.buffer.copy_(known.flat)
            pending = self._reduction.start(known.bucket, self._step)
        self._raise_earlier()
        summed: Future[Tensor] = Future(devices=[known.flat.device] if is_gpu(known.flat.device) else None)
        self._started.append(_Started(known, pending, summed))
        if given.is_last():
            # waiting starts communication, too, which must be in the same order on all ranks: only when all have been started
            self._waiter.submit(self._finish, self._started, self._clock and self._clock.computed())
            self._started = []
            for number in [number for number in self._known if number > given.index()]:
                self._reduction.forget(self._known.pop(number).bucket)
            self._passes += 1
            self._step += 1
        return summed.then(lambda _: self._mean(known.flat))

    def sum_(self, tensor: Tensor, number: int = 0) -> Tensor:
        """Sum a tensor over the ranks, in place, and return it; for training loops without DistributedDataParallel.

        `number` tells tensors of one length apart: lossy reductions add what they did not send to the next tensor with it.
        All ranks call it with tensors of the same lengths in the same order, and not while the hook sums buckets.
        """
        self._raise_earlier()
        if not isinstance(tensor, Tensor):
            raise UserError(f"sum_ takes a tensor (got {type(tensor).__name__})")
        if tensor.layout != torch.strided:
            raise UserError(f"sum_ takes dense tensors (got one of {tensor.layout}): tensor.to_dense() is one")
        _reducible(tensor, "sum_ was called with a tensor of")
        if any(stride == 0 < size - 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise UserError(
                "sum_ was called with a tensor whose elements share memory, as expand leaves them: clone it"
            )
        self._connect()
        with self._keeping_errors():
            if self._started:
                raise self._failure("sum_ was called while buckets of a backward pass are still being summed")
            self._sum(tensor.detach(), number)
        self._raise_earlier()
        return tensor

    def close(self) -> None:
        """Release threads, connections and the process group of the reducer; that of the script stays.

        A script that ends without this call closes its reducers then, before torch's threads are torn down.
        """
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._at_exit)
        self._waiter.shutdown()
        self._disconnect()

    def _disconnect(self) -> None:
        """Close what has been opened."""
        reduction, transport = (self.__dict__.pop(name, None) for name in ("_reduction", "_transport"))
        try:
            if reduction is not None:
                reduction.close()
        finally:
            if transport is not None:
                transport.close(is_broken=self._error is not None)

    def _sum(self, tensor: Tensor, number: int) -> None:
        """Sum a tensor in a buffer of its own, which is kept for the next one of this length and number."""
        key = tensor.numel(), number, torch.float32 if tensor.dtype in _CONVERTED else tensor.dtype
        began_s = self._clock.begin_sum(key) if self._clock else 0.0
        if key not in self._single:
            with torch.inference_mode(False):  # a later call may be outside of it
                buffer = torch.empty(key[0], dtype=key[2], device=self._transport.device)
                self._single[key] = Bucket(buffer, len(self._single), (tensor.shape,))
                self._reduction.prepare([self._single[key]])
        bucket = self._single[key]
        bucket.buffer.view_as(tensor).copy_(tensor)
        with torch.inference_mode(False):
            self._reduction.start(bucket, self._step).wait()
        self._step += 1
        if self._clock:
            self._clock.end_sum(began_s)
        tensor.copy_(bucket.buffer.view_as(tensor))

    @cached_property
    def _transport(self) -> Transport:
        found = attach(self._group, self._timeout_s)
        wanted = {f"{name} in {dtype}" for name, dtype in found.gather_objects((self._name, self._wire_dtype))}
        if len(wanted) > 1:
            found.close()
            raise UserError(
                f"ranks have reducers that differ ({', '.join(sorted(wanted))}): all need the same one, also of {REDUCTION} in "
                "their environment"
            )
        return found

    @cached_property
    def _reduction(self) -> Reduction:
        return find_reduction(self._name, Context(self._transport, self._wire_dtype, self._profile, may_measure=False))

    @cached_property
    def _clock(self) -> ScriptClock | None:
        return clock_of_script(self._transport)

    @cached_property
    def _stream(self) -> Any:
        return new_stream(self._transport.device)

    def _refuse_another_model(self, given: GradBucket) -> None:
        """FiretrainError if a bucket belongs to another model than the first one."""
        own = set(map(id, given.parameters()))
        if not self._passes:
            self._parameters |= own
        if given.index() != len(self._started) or not own <= self._parameters:
            raise self._failure("a bucket of another model came: give each model a Reducer of its own")

    def _bucket_of(self, given: GradBucket) -> _Known:
        """What is known of a bucket; torch rebuilds its buckets after the first step."""
        flat, shapes = given.buffer(), tuple(parameter.shape for parameter in given.parameters())
        known = self._known.get(given.index())
        if known is None or not known.is_of(flat, shapes):
            if flat.device.type != self._transport.device.type:
                raise self._failure(
                    f"gradients are on {flat.device}, and the process group communicates from {self._transport.device}: make it "
                    f"by init_process_group({'nccl' if is_gpu(flat.device) else 'gloo'!r})"
                )
            buffer = flat.float() if _reducible(flat).dtype in _CONVERTED else flat
            if known is not None and (len(known.flat), known.bucket.shapes) != (len(flat), shapes):
                self._reduction.forget(known.bucket)
            known = self._known[given.index()] = _Known(flat, Bucket(buffer, given.index(), shapes))
            self._reduction.prepare([known.bucket])
        return known

    def _finish(self, started: list[_Started], computed: Any) -> None:
        """Wait for all sums of a backward pass, in order, and complete their futures. Runs in a thread.

        `computed`: what the clock told when the last gradients were issued, if there is a clock. A backward pass waits for the
        futures, and would do so for ever if an error came between.
        """
        with self._keeping_errors():
            use_in_this_thread(self._transport.device)
            computed = self._clock and self._clock.wait(computed)
        for one in started:
            with self._keeping_errors(), issued_on(self._stream, waits=False):
                self._complete(one)
                if self._clock and one is started[-1] and self._error is None:
                    self._clock.end_pass(computed)
                # torch's streams wait for that on which the tensors of a result were computed
                one.summed.set_result(one.known.flat)
            if not one.summed.done():  # after an error
                one.summed.set_result(one.known.flat)

    def _complete(self, one: _Started) -> None:
        """Wait for a sum and divide it by the ranks; nothing after an error, because other ranks may be lost."""
        if self._error is not None:
            return
        one.pending.wait()
        one.known.bucket.buffer.div_(self._transport.size)
        if one.known.flat is not one.known.bucket.buffer:
            one.known.flat.copy_(one.known.bucket.buffer)

    def _mean(self, flat: Tensor) -> Tensor:
        """The result of a future; an error that is raised here reaches torch as one."""
        if self._error is not None:
            raise self._error
        return flat

    def _failure(self, message: str) -> FiretrainError:
        return FiretrainError(f"rank {self._transport.identity.rank}: {message}")

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """Keep an error for `_raise_earlier`, which raises it now and in all later calls."""
        try:
            yield
        except FiretrainError as error:
            self._error = self._error or error
            if isinstance(error, LostPeer):
                mark_lost_peer(str(error))
        except Exception as error:
            failure = FiretrainError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._error = self._error or failure

    def _raise_earlier(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise FiretrainError("this Reducer is closed")


def _close(reducer: ref[Reducer]) -> None:
    if found := reducer():
        found.close()


def hook(state: Reducer, bucket: GradBucket) -> Future[Tensor]:
    """The communication hook: `model.register_comm_hook(reducer, hook)`, once for each model.

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model, reducer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)), Reducer("tree")
    >>> model.register_comm_hook(reducer, hook)
    >>> model(torch.ones(3, 2)).sum().backward()
    >>> model.module.weight.grad
    tensor([[3., 3.]])
    >>> reducer.close()
    >>> dist.destroy_process_group()
    """
    if not isinstance(state, Reducer):
        raise UserError(f"the hook needs a reducer: model.register_comm_hook(Reducer(), hook) (got {state!r})")
    return state.start(bucket)


def _reducible(tensor: Tensor, what: str = "gradients are") -> Tensor:
    """The tensor; FiretrainError, which says `what` it is, unless it can be summed, or is of 16 bits, which are converted."""
    if tensor.dtype not in (*SUMMED, *_CONVERTED):
        raise FiretrainError(
            f"{what} {tensor.dtype}: reductions sum float32 and float64, and bfloat16 and float16 as float32"
        )
    return tensor
