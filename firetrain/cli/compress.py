"""The `compress` and `evaluate` commands."""

from __future__ import annotations

from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.garbage import collect_as_usual
from firetrain.cli.jobs import choose_where, job_settings, site_options, where_option
from firetrain.cli.options import (
    echo_json,
    json_option,
    make_console,
    option_names,
    print_table,
    refuse_given,
    set_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.compression.trainings import Train
    from firetrain.config import Config
    from firetrain.config.compression import CompressionRecipe, Method
    from firetrain.records import Run

data_option = click.option(
    "--data", metavar="FOLDER", help="The folder of the images; short for --set data.root=FOLDER."
)
_METHODS = ("deep", "prune", "quantise", "svd")  # config.compression.Method, without importing it


class WithRuns(click.Group):
    """A group whose command `run` is meant if the first word is no command, but a path, a run in results or before options."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word, or `run` with all words."""
        from firetrain.config.files import exists

        if (
            args
            and args[0] not in self.commands
            and not args[0].startswith("-")
            and ("/" in args[0] or _goes_on(args) or exists(Path(args[0])) or exists(Path("results") / args[0]))
        ):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


def _goes_on(args: list[str]) -> bool:
    """Whether a word is followed by options, with --out among them."""
    return args[1:2] != [] and args[1].startswith("-") and any(one.split("=")[0] == "--out" for one in args)


@click.group(cls=WithRuns)
def compress() -> None:
    """Compress a trained RUN to one small file.

    `firetrain compress RUN` is short for `firetrain compress run RUN`.

    \b
    Examples:
      firetrain compress run RUN --recipe lenet-300-100 --out model.fire
      firetrain compress show model.fire
    """


@compress.command("run")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--method", type=click.Choice(_METHODS), default="deep", show_default=True,
    help="deep: prune, and let weights share values; prune, quantise: only one of the two; svd: matrices of low rank.",
)  # fmt: skip
@click.option("--bits", type=click.IntRange(2, 8), help="Bits of a code, in all layers.  [default: the recipe's]")
@click.option("--recipe", metavar="NAME|FILE", help="What is done to each layer.  [default: no pruning, 6 bits]")
@data_option
@set_option
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The compressed model's file."
)
@json_option
@where_option
@site_options
def compress_run(
    run: Path, method: Method, bits: int | None, recipe: str | None, data: str | None, overrides: tuple[str, ...], out: Path,
    as_json: bool, where: str, **slurm: Any,
) -> None:  # fmt: skip
    """Compress RUN to one file: prune, share values, train in between.

    Each training has the run's config, changed by the recipe and by --set; --data names the folder of images that have moved. The
    runs of the trainings are in OUT.trainings; if the command is repeated, it goes on with the first one that is not complete.
    With Slurm, each training is a job.

    \b
    Examples:
      firetrain compress run results/lenet-mnist-20260102-030405-1a2b3c4d --recipe lenet-5 --out lenet.fire
      firetrain compress run results/alexnet-20260102-030405-1a2b3c4d --recipe alexnet --site mycluster --out alexnet.fire
    """
    from firetrain.coding.file import read
    from firetrain.compression.pipeline import Compression
    from firetrain.config.sections.model import TORCH_ENDINGS
    from firetrain.errors import UserError
    from firetrain.records.file import refuse_unwritable
    from firetrain.records.saved import saved_in
    from firetrain.report.compressed import headline

    if out.suffix in TORCH_ENDINGS:
        raise UserError(f"--out {out}: {out.suffix} is the ending of torch's files; call it {out.with_suffix('.fire')}")
    refuse_unwritable(out)
    _refuse_other_file(out)
    console = make_console(stderr=as_json)
    chosen = _recipe(method, bits, recipe)
    overrides = _with_root(overrides, data)
    moved = [text for text in overrides if text.partition("=")[0].strip() == "data.root"]
    of_trainings = {"--set": len(overrides) > len(moved), "--on slurm": where == "slurm", **option_names(slurm)}
    trainings = chosen.trainings(method)
    refuse_given({} if trainings else of_trainings, "only with a recipe that trains under this method")
    train = _train(where, slurm, console)
    folder = out.with_name(out.name + ".trainings").absolute()
    source = _one_run(run)
    if not source.summary() and saved_in(source.path / "checkpoints"):
        click.echo(f"note: {source.path} is not complete: its newest checkpoint is compressed", err=True)
    compression = Compression(source, chosen, method, folder, train, moved, overrides)
    size_bytes = compression.run(out)
    model = read(out)
    if as_json:
        echo_json({"file": str(out), "bytes": size_bytes, "sizes": dict(model.sizes)})
        return
    click.echo(headline(model))
    click.echo(f"\nnext:\n  firetrain compress show {quote(str(out))}\n  {_evaluation(out, compression.config)}")


def _refuse_other_file(path: Path) -> None:
    """UserError if there is something that is not a compressed model, and would be replaced by one."""
    from firetrain.coding.file import MAGIC
    from firetrain.config.files import exists, refuse_irregular
    from firetrain.errors import CannotCreate, UserError
    from firetrain.records.file import cannot_write

    if not exists(path):
        return
    refuse_irregular(path)
    with cannot_write(path, CannotCreate), path.open("rb") as file:
        begins = file.read(len(MAGIC))
    if begins not in (b"", MAGIC):
        raise UserError(f"{path} is no compressed model, and is not replaced by one: give another name, or delete it")


def _with_root(overrides: tuple[str, ...], data: str | None) -> tuple[str, ...]:
    """Overrides, and --data as one of them."""
    import json

    return overrides if data is None else (*overrides, f"data.root={json.dumps(data, ensure_ascii=False)}")


def _evaluation(out: Path, config: Config) -> str:
    """The command that evaluates the compressed file of a run with this config."""
    words = ["firetrain", "evaluate", str(out)]
    words += ["--data", config.data.root] if config.data.root else []
    for section, own in (("model", config.model.own), ("data", config.data.own)):
        words += ["--set", f"{section}.name={own.without_folder}"] if own else []
    return join(words)


def _recipe(method: Method, bits: int | None, name: str | None) -> CompressionRecipe:
    """The recipe; what has no effect under the method is printed. UserError if nothing has one under prune, or svd."""
    from firetrain.config.compression import load_recipe
    from firetrain.errors import UserError

    refuse_given({"--bits": bits is not None and method in ("prune", "svd")}, "only with a method that shares values")
    recipe = load_recipe(name)
    keys = {"prune": {"density", "threshold"}, "svd": {"low_rank_share"}}.get(method)
    if keys and not any(keys & layer.model_fields_set for layer in recipe.layers.values()):
        raise UserError(
            f"--method {method} needs a recipe whose layers have {' or '.join(sorted(keys))} (got {recipe.name})"
        )
    if unused := recipe.without_effect(method):
        click.echo(f"note: no effect under --method {method}, of recipe {recipe.name}: {', '.join(unused)}", err=True)
    return recipe if bits is None else recipe.with_bits(bits)


def _train(where: str, slurm: dict[str, Any], console: Console) -> Train:
    """What starts a training, here or as Slurm jobs; UserError for mistakes in the options of jobs."""
    from firetrain.compression.trainings import train_as_jobs, train_here

    if choose_where(where, slurm, console) == "slurm":
        return train_as_jobs(job_settings(slurm), console)
    refuse_given(option_names(slurm), "only with --on slurm; this compression is on this machine")
    return train_here(console)


def _one_run(path: Path) -> Run:
    """The run in this directory, or the only one in this folder of runs; UserError if there is none, or more than one."""
    from firetrain.errors import UserError
    from firetrain.report.history import find

    found = find([str(path)], Path("results"))
    if len(found) > 1:
        raise UserError(f"{path} has {len(found)} runs: give the directory of one, such as {found[0].path}")
    return found[0]


@compress.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the bytes of each layer in this file (.svg, .png or .pdf).",
)
@json_option
def show(file: Path, svg: Path | None, as_json: bool) -> None:
    """Show the bytes of FILE by layer and by kind.

    \b
    Example:
      firetrain compress show model.fire
    """
    from firetrain.coding.file import read
    from firetrain.report.compressed import bytes_by_tensor, draw, headline, table

    model = read(file)
    if svg:
        draw(model, svg)
    if as_json:
        tensors = [
            {"name": one.tensor.name, "shape": list(one.tensor.shape), "kind": one.tensor.kind, "density": one.tensor.density,
             "bits": one.tensor.bits, "gap_bits": one.tensor.gap_bits, "bytes": one.by_kind}
            for one in bytes_by_tensor(model)
        ]  # fmt: skip
        echo_json({"model": dict(model.model), "sizes": dict(model.sizes), "tensors": tensors})
        return
    click.echo(headline(model) + "\n")
    print_table(table(model))
    if svg:
        click.echo(f"\nwritten to {svg}")


@compress.command("open")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The state dict's file (.pt)."
)
def open_file(file: Path, out: Path) -> None:
    """Write the weights of FILE as a state dict of torch.

    \b
    Example:
      firetrain compress open model.fire --out weights.pt
    """
    from firetrain.compression.opening import write_state
    from firetrain.config.files import exists
    from firetrain.config.sections.model import TORCH_ENDINGS
    from firetrain.errors import UserError

    if out.suffix not in TORCH_ENDINGS:
        raise UserError(f"--out {out}: the name of a state dict ends in {' or '.join(sorted(TORCH_ENDINGS))}")
    if exists(out):  # it may be a checkpoint, or another state dict
        raise UserError(f"{out} exists, and is not replaced: give another name, or delete it")
    count = write_state(file, out)
    click.echo(f"{count} tensors written to {out}; torch.load(path, weights_only=True) reads them")


@click.command()
@click.argument("what", metavar="FILE|RUN", type=click.Path(path_type=Path))
@data_option
@set_option
@json_option
def evaluate(what: Path, data: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Compute the accuracy of a compressed FILE, or of RUN.

    All test images are used; of a run, its newest checkpoint. RUN is a directory, or the name of a run in results/.

    \b
    Examples:
      firetrain evaluate model.fire --data data/mnist
      firetrain evaluate lenet-mnist-20260102-030405-1a2b3c4d
    """
    from dataclasses import asdict

    from firetrain.compression.evaluation import evaluate_file, evaluate_run
    from firetrain.config.files import exists, is_folder
    from firetrain.errors import UserError

    collect_as_usual()
    overrides = _with_root(overrides, data)
    of_run = is_folder(what) or (not exists(what) and is_folder(Path("results") / what))
    if not of_run and not exists(what):
        raise UserError(
            f"{what}: there is no compressed file and no run of this name, here or in results/; firetrain report lists runs"
        )
    score = evaluate_run(_one_run(what), overrides) if of_run else evaluate_file(what, overrides)
    if as_json:
        echo_json(asdict(score))
        return
    click.echo(
        f"top-1 {score.top1:.2%}, top-5 {score.top5:.2%}, loss {score.loss:.4f}, on {score.images:,} test images"
    )
