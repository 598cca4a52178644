"""Training with parameter servers: what each rank does under this strategy."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firetrain import checkpoint
from firetrain.cluster import SystemClock, World
from firetrain.config import Config
from firetrain.config.names import ParameterServer
from firetrain.config.sections.reduction import ReductionSection
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import steps_per_epoch
from firetrain.errors import CannotWrite
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.catalogue import replicate, worker_of
from firetrain.parallel.server import make_server
from firetrain.parallel.shard import shard_bounds
from firetrain.parallel.tickets import Tickets
from firetrain.parallel.worker import Worker
from firetrain.records import Run
from firetrain.strategy.policy import find_policy
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.divergence import Diverged
from firetrain.training.input import Input
from firetrain.training.log import Log
from firetrain.training.server_ledger import ServerLedger
from firetrain.training.server_loop import ServerLoop
from firetrain.training.setup import labels_of, model_and_data, refuse_other_labels, started
from firetrain.training.shards import ShardLoop, Shards
from firetrain.training.stagnation import Stagnation
from firetrain.training.stop import Stop, Stopped
from firetrain.training.worker_loop import WorkerLoop
from firetrain.transport.device import without_effect
from firetrain.transport.hub import Hub
from firetrain.transport.meeting import Meeting
from firetrain.transport.transport import Transport
from firetrain.words import counted


@dataclass(frozen=True)
class ServerRoles:
    """A run under this strategy, on one rank.

    - `alone`: a transport of this rank only, with its device.
    - `marks`, `began`: as for `training.setup.set_up`.
    """

    config: Config
    strategy: ParameterServer
    run: Run
    meeting: Meeting
    alone: Transport
    marks: Sequence[Path]
    began: float | None = None

    def train(self) -> None:
        """Train to the end of the run, as this rank. Stopped on rank 0 if the run was asked to end earlier."""
        rank = self.meeting.identity.rank
        if rank == 0:
            self._serve()
        elif rank < self.strategy.servers:
            self._serve_shard(rank)
        else:
            self._work(rank)

    @property
    def _workers(self) -> int:
        return self.strategy.workers(self.meeting.identity.world_size, self.config.batch.global_size)

    def _serve(self) -> None:
        hub = self.meeting.open_hub()
        serving = self._serving(hub)
        if self.meeting.identity.launcher == "srun":  # Slurm signals the tasks directly
            signal.signal(signal.SIGTERM, lambda number, frame: serving.stop.ask())
        serving.assemble()
        try:
            self.run.update(hosts=list(dict.fromkeys([*self.run.facts()["hosts"], *serving.hosts])))
            serving.run()
        except (Stopped, Diverged, CannotWrite):  # the other ranks end as they should
            serving.dismiss()
            serving.close()
            raise
        serving.dismiss()
        serving.close()

    def _serve_shard(self, rank: int) -> None:
        hub = self.meeting.open_hub()
        classes = self.meeting.ask("classes")
        state = self._state(self.meeting.ask("checkpoint"))
        model, optimizer = self._model(classes, state)
        # neither the policy nor the rate is needed here: both are in the orders of rank 0
        schedule = LearningRate.of(self.config, 1)
        shard = make_server(
            model, optimizer, str(self.strategy.policy), self._workers, schedule, rank, self.strategy.servers
        ).shard
        serving = ShardLoop(rank, shard, hub, self.alone.timeout_s)
        _let_rank_0_end(self.meeting)
        serving.run()
        serving.close()

    def _work(self, rank: int) -> None:
        _let_rank_0_end(self.meeting)
        clock = SystemClock()
        began_s = clock.now_s()
        dataset = open_dataset(self.config.data)
        if self.config.data.own:
            refuse_other_labels(self.config, rank, labels_of(dataset), self.meeting.ask("labels"))
        worker = self._worker(len(dataset.classes), resumes=bool(self.meeting.ask("checkpoint")))
        lines = [self.meeting.line_to(number) for number in reversed(range(self.strategy.servers))][::-1]
        pushing = WorkerLoop(
            config=self.config, rank=rank, transport=self.alone, lines=lines, bounds=self._bounds(worker.model), worker=worker,
            input=Input(self.config.data, self.config.seed, dataset, self.alone, worker.largest_batch),
            schedule=self._schedule(dataset), policy=find_policy(str(self.strategy.policy), self._workers)[0],
            clock=clock, began_s=began_s,
        )  # fmt: skip
        pushing.run()
        pushing.close()

    def _serving(self, hub: Hub) -> ServerLoop:
        config, alone = self.config, self.alone
        checkpoints = Checkpoints(config.checkpoint, self.run, alone)
        state = checkpoints.newest()
        self.meeting.tell("checkpoint", str(checkpoints.path) if state else "")
        cluster = config.cluster
        world = World.even(cluster.nodes, cluster.ranks_per_node)
        ledger = ServerLedger(self.run, alone, SystemClock(), self.began, world, self.strategy.servers)
        started(ledger, self.run, state)
        dataset = open_dataset(config.data)
        classes = len(dataset.classes)
        self.meeting.tell("classes", classes)
        self.meeting.tell("labels", labels_of(dataset) if config.data.own else [])
        schedule = self._schedule(dataset)
        model, optimizer = self._model(classes, state)
        server = make_server(
            model, optimizer, str(self.strategy.policy), self._workers, schedule, count=self.strategy.servers
        )
        tickets = Tickets(schedule.total_steps * server.policy.shares)
        counters = state.get("server", {}) if state else {}
        if state:
            pushes = ledger.step * server.policy.shares
            if counters.get("shares") == server.policy.shares:
                tickets.load(counters)
                pushes = tickets.used
            else:  # of another strategy, or of a policy that divides a batch otherwise
                tickets.skip(pushes)
            server.load(counters, pushes)
        log = Log(alone, self.run, ledger)
        log.track(config)
        lines = [self.meeting.line_to(number) for number in range(1, self.strategy.servers)]
        evaluator = self._worker(classes, resumes=bool(state))
        serving = ServerLoop(
            config=config, workers=self._workers, transport=alone, hub=hub, log=log, ledger=ledger,
            checkpoints=checkpoints, stop=Stop(self.run, alone, ledger, checkpoints, self.marks), server=server,
            shards=Shards(model, optimizer, server.shard, hub, lines, self._bounds(model)), tickets=tickets,
            evaluator=evaluator, input=Input(config.data, config.seed, dataset, alone, evaluator.largest_batch),
            schedule=schedule, stagnation=Stagnation(classes), lost=counters.get("workers_lost", 0),
        )  # fmt: skip
        for line in self._announcement(serving, dataset, resumes=bool(state)):
            serving.log.say(line)
        return serving

    def _announcement(self, serving: ServerLoop, dataset: Dataset, *, resumes: bool) -> Iterator[str]:
        if resumes:
            yield f"resuming after step {serving.ledger.step}"
        config, workers = self.config, counted(self._workers, "worker")
        yield model_and_data(config.model.name, serving.evaluator, dataset)
        threads = f"{counted(torch.get_num_threads(), 'compute thread')} per rank"
        yield f"{config.strategy.spec}: {counted(self.strategy.servers, 'server')}, {workers}; {threads}"
        plain = ReductionSection.model_validate({})
        if changed := [
            key for key in ReductionSection.model_fields if getattr(config.reduction, key) != getattr(plain, key)
        ]:
            keys = ", ".join(f"reduction.{key}" for key in changed)
            yield f"note: {keys}: no effect, because gradients are pushed to servers and not reduced"
        for note in without_effect(serving.transport.device, config.precision, deterministic=config.deterministic):
            yield f"note: {note}"
        yield f"learning rate {serving.schedule.explain(config.batch.global_size)}"

    def _worker(self, classes: int, *, resumes: bool) -> Worker:
        """A worker with the whole model, which reduces nothing; a micro-batch is at most as large as a worker's share.

        A run that resumes has the weights, whatever has become of the file that it began with.
        """
        strategy = self.config.strategy.model_copy(update={"name": DATA_PARALLEL, "parameters": {}})
        config = (_without_file(self.config) if resumes else self.config).model_copy(update={"strategy": strategy})
        if config.batch.per_rank_max is None:
            share = -(-config.batch.global_size // find_policy(str(self.strategy.policy), self._workers)[0].shares)
            config = config.model_copy(update={"batch": config.batch.model_copy(update={"per_rank_max": share})})
        return worker_of(config, replicate(config, classes, self.alone), self.alone, reduction="native")

    def _model(self, classes: int, state: Mapping[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model on the CPU, where all messages are, and its optimiser."""
        on_cpu = replace(self.alone, name="gloo", device=torch.device("cpu"))
        model = replicate(_without_file(self.config) if state else self.config, classes, on_cpu)
        optimizer = make_optimizer(model, self.config)
        if state:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        return model, optimizer

    def _bounds(self, model: nn.Module) -> list[tuple[int, int]]:
        return shard_bounds([one.numel() for one in model.parameters()], self.strategy.servers)

    def _schedule(self, dataset: Dataset) -> LearningRate:
        return LearningRate.of(self.config, steps_per_epoch(len(dataset.train.labels), self.config.batch.global_size))

    @staticmethod
    def _state(path: str) -> dict[str, Any]:
        """The content of the checkpoint that rank 0 has found, if it has found one."""
        return checkpoint.load(Path(path)) if path else {}


def _without_file(config: Config) -> Config:
    """The config without the file of weights with which a run began."""
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": None})})


def _let_rank_0_end(meeting: Meeting) -> None:
    """Ignore Slurm's SIGTERM: rank 0 gets it, too, and tells the other ranks when everything is saved."""
    if meeting.identity.launcher == "srun":
        signal.signal(signal.SIGTERM, lambda number, frame: None)
