"""A compression, step by step: prune and train again, share values and train these, write the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firetrain import checkpoint
from firetrain.coding.file import CompressedModel, read, write
from firetrain.coding.tensor import CompressedTensor, Floats, is_weight, low_rank, raw, shared, sparse
from firetrain.compression.pruning import density_of, pruned
from firetrain.compression.trainings import Train
from firetrain.config import Config, ConfigError, Loaded
from firetrain.config.compression import PRUNE, SHARE, CompressionRecipe, Method
from firetrain.config.files import read_text
from firetrain.config.load import load_text
from firetrain.data.catalogue import open_dataset
from firetrain.errors import UserError, unknown
from firetrain.models.catalogue import make_model
from firetrain.models.weights import refuse_differences
from firetrain.records import Run

State = Mapping[str, Floats]
# what a training does not take over from the run
_ANEW = (
    "target.top1=null", "target.train_on=false", "target.max_steps=null", "learning_rate.peak=null", "learning_rate.scaling=none",
    "learning_rate.base_batch=null", "learning_rate.warmup_epochs=0", "learning_rate.warmup_from=null",
    "checkpoint.every_epochs=1", "checkpoint.every_steps=null",
)  # fmt: skip

# what a training keeps, by its key in the recipe
_KEPT = {"retrain": "zeros", "finetune": "values"}


class Compression:
    """Compresses a run; trainings that were complete before are not repeated.

    `folder`: has a folder for each training, with the file that it starts from, and its run. `train`: starts a training, and
    waits for its end. `moved`: overrides that say where the run's data are now. `config`: that of the run, with these.
    `overrides`: of every training, after those of the recipe.
    """

    def __init__(
        self,
        run: Run,
        recipe: CompressionRecipe,
        method: Method,
        folder: Path,
        train: Train,
        moved: Sequence[str] = (),
        overrides: Sequence[str] = (),
    ) -> None:
        self._run, self._recipe, self._method, self._folder, self._train = run, recipe, method, folder, train
        self._overrides = tuple(overrides)
        text, source = read_text(run.config_path), str(run.config_path)
        self.config = config = load_text(text, source, moved).config if moved else run.config()
        self._classes, self._precision = len(open_dataset(config.data).classes), config.precision
        self._model, self._data = _described(config)
        # without the file that the run began with, which may be gone; of two seeds, because what is drawn is not made by the code
        drawn = config.model.model_copy(update={"weights": None})
        made, other = (make_model(drawn, self._classes, seed) for seed in (config.seed, config.seed + 1))
        self._made = made.state_dict(), other.state_dict()
        weights = {
            name: one
            for name, one in made.named_parameters(remove_duplicate=False)
            if one.requires_grad and is_weight(one.dim())
        }
        self._weights, first = set(weights), dict[int, str]()
        # names of one tensor, by the first of them
        self._tied = {
            name: before for name, one in weights.items() if (before := first.setdefault(id(one), name)) != name
        }

    def run(self, out: Path) -> int:
        """Compress, and write the file; returns its bytes.

        UserError, before anything is trained, if the recipe names layers that the model does not have, if a config of its
        trainings is wrong, if weights are not finite, or if the file could not give back all that the checkpoint has.
        """
        saved = checkpoint.newest_model(self._run.path)
        self._refuse_unkept(saved)
        state: State = _floats(saved)
        self._refuse_unknown_layers(state)
        self._refuse_different_ties()
        self._refuse_unwritable(state, self._run)
        for key in self._recipe.trainings(self._method):
            self._config(self._folder / "start.fire", key)
        if self._method in PRUNE:
            state = self._pruned(state)
        if self._method == "svd":
            return self._written(
                {name: self._as_low_rank(name, array) for name, array in state.items()}, out, self._recipe.dtype
            )
        if self._method in SHARE:
            state = self._trained("share", state, self._packed(state), "finetune")
        return self._written(self._packed(state), out, self._recipe.dtype)

    def _refuse_unkept(self, saved: Mapping[str, Tensor]) -> None:
        """UserError if the checkpoint has what neither the file nor the model's code would give back."""
        refuse_differences(self._made[0], saved, f"the checkpoint of {self._run.path}")
        others = [name for name, value in saved.items() if not _is_kept(name, value)]
        if lost := [name for name in others if not all(torch.equal(saved[name], made[name]) for made in self._made)]:
            raise UserError(
                f"{self._run.path}: a compressed model has float32 numbers, and what the model's code makes: "
                f"{', '.join(lost[:3])} would be lost"
            )

    def _refuse_unwritable(self, state: State, run: Run) -> None:
        """UserError if numbers of a run are not finite, or larger than the recipe's type can hold."""
        if odd := [name for name, array in state.items() if not np.isfinite(array).all()]:
            raise UserError(f"{run.path}: weights that are not finite cannot be compressed: {', '.join(odd[:3])}")
        self._refuse_too_large(state.values(), self._recipe.dtype)

    def _refuse_too_large(self, arrays: Iterable[Floats], dtype: str) -> None:
        largest = max((float(np.abs(one).max(initial=0)) for one in arrays), default=0.0)
        if dtype == "float16" and largest > float(np.finfo(np.float16).max):
            raise UserError(f"recipe {self._recipe.name}: dtype float16 cannot hold {largest:g}: use float32")

    def _refuse_unknown_layers(self, state: State) -> None:
        layers = [layer_of(name) for name in state if name in self._weights]
        name, used = self._recipe.name, {self._recipe.pattern_of(layer) for layer in layers}
        wrong = [
            f"recipe {name}: layers.{pattern} has no effect: earlier patterns fit its layers"
            if any(fnmatchcase(one, pattern) for one in layers)
            else f"recipe {name}: {unknown('layer', pattern, layers)}"
            for pattern in self._recipe.layers
            if pattern not in used
        ]
        if wrong:
            raise UserError("\n".join(wrong))

    def _refuse_different_ties(self) -> None:
        """UserError if layers that have the same weights would be compressed in different ways."""
        keys = {"density", "threshold"} if self._method in PRUNE else set()
        keys |= {"bits"} if self._method in SHARE else set()
        keys |= {"low_rank_share"} if self._method == "svd" else {"gap_bits"}
        for name, other in self._tied.items():
            mine, first = (self._recipe.of(layer_of(one)).model_dump(include=keys) for one in (name, other))
            if mine != first:
                raise UserError(
                    f"recipe {self._recipe.name}: {name} is {other}: give {layer_of(name)} what {layer_of(other)} has"
                )

    def _pruned(self, state: State) -> State:
        """Prune in rounds, to densities that fall by the same factor in each; train after each round."""
        rounds = self._recipe.rounds
        targets = {
            name: density_of(array, self._recipe.of(layer_of(name)))
            for name, array in state.items()
            if name in self._weights
        }
        for number in range(1, rounds + 1):
            state = {
                name: pruned(array, targets[name] ** (number / rounds)) if name in targets else array
                for name, array in state.items()
            }
            packed = {name: self._as_sparse(name, array) for name, array in state.items()}
            state = self._trained(f"prune-{number}", state, packed, "retrain")
        return state

    def _trained(self, name: str, state: State, packed: Mapping[str, CompressedTensor], key: str) -> State:
        """The state after the training of a `key` of the recipe from `packed`; `state` itself if there is no such training."""
        if not getattr(self._recipe, key):
            return state
        folder = self._folder / name
        start = folder / "start.fire"
        if not start.exists():
            self._written(packed, start)
        elif not _same(read(start).state(), packed):
            raise UserError(
                f"{start} has other weights than this compression: give another --out, or delete {folder} and the trainings "
                "after it"
            )
        run = self._train(self._config(start, key), folder)
        state = weights_of(run)
        self._refuse_unwritable(state, run)
        return state

    def _config(self, start: Path, key: str) -> Loaded:
        """The config of a training from the file `start`: that of the run, without its target, steps and warmup.

        UserError if it would leave no checkpoint, or not keep what it must.
        """
        text, source = read_text(self._run.config_path), str(self._run.config_path)
        keep, of_recipe = _KEPT[key], getattr(self._recipe, key)
        own = (f"model.weights={json.dumps(str(start), ensure_ascii=False)}", f"model.keep={keep}")
        try:
            loaded = load_text(text, source, [*_ANEW, *own, *of_recipe, *self._overrides])
        except ConfigError as error:
            written = {f"--set {one}": f"recipe {self._recipe.name}, {key}: {one}" for one in of_recipe}
            raise error.at(written) from None
        if not loaded.config.checkpoint.every_epochs:
            raise UserError(
                "a training of a compression must save its last epoch: leave checkpoint.every_epochs as it is"
            )
        if (loaded.config.model.weights, loaded.config.model.keep) != (str(start), keep):
            raise UserError("a compression sets model.weights and model.keep of its trainings itself: remove them")
        if changed := _changes(self.config, loaded.config):
            raise UserError(
                f"a compression trains the network of its run on its images, and writes what they are to the file: leave "
                f"{', '.join(changed)} as it is in the run"
            )
        return loaded

    def _packed(self, state: State) -> dict[str, CompressedTensor]:
        """The tensors as they are in the final file."""
        if self._method == "prune":
            return {name: self._as_sparse(name, array) for name, array in state.items()}
        return {name: self._as_shared(name, array) for name, array in state.items()}

    def _as_sparse(self, name: str, array: Floats) -> CompressedTensor:
        gap_bits = self._recipe.of(layer_of(name)).gap_bits or self._recipe.gap_bits
        if name not in self._weights or not (array == 0).any():
            return raw(name, array)
        found, bits = sparse(name, array, gap_bits), 16 if self._recipe.dtype == "float16" else 32
        return found if len(found.gaps) * (bits + gap_bits) < array.size * bits else raw(name, array)

    def _as_shared(self, name: str, array: Floats) -> CompressedTensor:
        recipe = self._recipe.of(layer_of(name))
        if name not in self._weights:
            return raw(name, array)
        bits, gap_bits = recipe.bits or self._recipe.bits, recipe.gap_bits or self._recipe.gap_bits
        return shared(name, array, bits, gap_bits, self._recipe.bit_price)

    def _as_low_rank(self, name: str, array: Floats) -> CompressedTensor:
        share = self._recipe.of(layer_of(name)).low_rank_share
        if share is None or name not in self._weights or not array.size:
            return raw(name, array)
        rows, columns = array.shape[0], array.size // array.shape[0]
        rank = max(1, round(share * rows * columns / (rows + columns)))
        return low_rank(name, array, rank) if rank * (rows + columns) < array.size else raw(name, array)

    def _written(self, packed: Mapping[str, CompressedTensor], path: Path, dtype: str = "float32") -> int:
        self._refuse_too_large((one.values for one in packed.values()), dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        model = CompressedModel(
            self._model, self._data, self._classes, list(packed.values()), dtype, precision=self._precision
        )
        return write(model, path)


def _described(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the file says of a config: the sections of the model and of the data, without files and folders."""
    model = config.model.model_dump(mode="json", exclude={"weights", "keep", "folder"}, exclude_none=True)
    told = {"name", "arguments", "image_size", "validation_share", "classes", "images"}
    data = config.data.model_dump(mode="json", include=told, exclude_none=True)
    if config.data.on_bad_image != "fail":
        data["on_bad_image"] = config.data.on_bad_image
    for section, own in ((model, config.model.own), (data, config.data.own)):
        if own:
            section["name"] = own.without_folder
    return model, data


def _changes(config: Config, other: Config) -> list[str]:
    """The keys of what the file says in which two configs differ."""
    pairs = zip(("model", "data"), _described(config), _described(other), strict=True)
    found = [f"{name}.{key}" for name, a, b in pairs for key in {**a, **b} if a.get(key) != b.get(key)]
    return [*found, *(["precision"] if config.precision != other.precision else [])]


def weights_of(run: Run) -> dict[str, Floats]:
    """The weights and statistics in the newest checkpoint of a run; UserError if it has none."""
    return _floats(checkpoint.newest_model(run.path))


def _floats(model: Mapping[str, Tensor]) -> dict[str, Floats]:
    return {
        name: np.ascontiguousarray(value.float().numpy()) for name, value in model.items() if value.is_floating_point()
    }


def _is_kept(name: str, value: Tensor) -> bool:
    """Whether the file has a tensor exactly, or it counts batches, which changes nothing."""
    if value.is_floating_point():
        return torch.equal(value.float().double().nan_to_num(), value.double().nan_to_num())
    return name.endswith("num_batches_tracked")


def _same(state: State, packed: Mapping[str, CompressedTensor]) -> bool:
    """Whether the tensors are equal, where nan is equal to nan."""
    return state.keys() == packed.keys() and all(
        np.array_equal(state[name], one.array(), equal_nan=True) for name, one in packed.items()
    )


def layer_of(name: str) -> str:
    """The name of the layer of a tensor."""
    return name.rpartition(".")[0]
