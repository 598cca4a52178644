"""The logs of a run that a user asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.config.files import is_file, read_regular
from firetrain.errors import UserError
from firetrain.launch.verdict import endings
from firetrain.records import Run


def chosen_logs(run: Run, ranks: Sequence[int] = (), attempt: int | None = None) -> Iterator[tuple[str, str]]:
    """(heading, content) of each rank's log; without `ranks`, those of rank 0 and of the failed ranks.

    If the ranks of a job never started, its own log contains the reason and is the only one. `attempt`: default, the newest.
    UserError if an attempt or a log does not exist.
    """
    folder = run.attempt if attempt is None else run.path / f"attempt-{attempt}"
    if not folder.is_dir():
        of = "" if attempt is None else f" (attempts: {run.attempts})"
        raise UserError(f"{run.name} has no {folder.name}{of}")
    jobs = sorted(filter(is_file, run.path.glob("job-*.log")), key=lambda log: log.stat().st_mtime)
    failed = [ending.rank for ending in endings(folder) if ending.code]
    if not ranks and not failed and jobs and not (folder / "logs" / "rank-0000.log").exists():
        yield (
            f"{folder.name}: the ranks did not start; {jobs[-1].name}",
            read_regular(jobs[-1]).decode(errors="replace"),
        )
        return
    for rank in ranks or dict.fromkeys([0, *failed]):
        log = folder / "logs" / f"rank-{rank:04d}.log"
        if not log.exists():
            raise UserError(f"{run.name} has no log of rank {rank} in {folder.name}")
        yield f"{folder.name}, rank {rank}", read_regular(log).decode(errors="replace")
