"""Configs are parsed, rejected with all mistakes together, and keep the origin of each value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typed import SMALL, mistakes

from firetrain.config import ConfigError, load_config, load_text, shipped_configs
from firetrain.errors import UserError

SECTIONS = (
    "name, seed, precision, deterministic, channels_last, compile, compile_unit, model, data, batch, optimizer, "
    "learning_rate, strategy, reduction, target, cluster, checkpoint, log, label_smoothing, provenance, force"
)


def test_an_exponent_without_a_dot_is_a_number() -> None:
    assert load_text(SMALL, "my.yaml").config.learning_rate.base == 1e-4


def test_on_and_octal_mean_what_yaml_1_2_says() -> None:
    text = SMALL.replace("small", "on", 1).replace("32", "032")
    config = load_text(text, "my.yaml").config
    assert (config.name, config.batch.global_size) == ("on", 32)


def test_every_mistake_is_told_at_once_with_its_place() -> None:
    text = """\
name: bad name!
model: {name: squeezenet1_2}
data: {name: digits, image_size: "16", imagesize: 3}
batch:
  global_size: 0
optimizer: {name: sgd, trust_coefficient: 0.01}
learning_rate: {}
"""
    assert mistakes(text) == [
        "my.yaml:1:1: name: must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$ (got 'bad name!')",
        "my.yaml:2:9: model.name: must be one of alexnet, alexnet_thesis, googlenet, googlenet_mini, googlenet_paper, lenet, "
        "lenet_300_100, nin, squeezenet1_0, squeezenet1_1, squeezenet_mini, "
        "did you mean squeezenet1_1?, or a model of your own: package.module:name, or ./file.py:name (got 'squeezenet1_2')",
        "my.yaml:3:22: data.image_size: must be an integer (got '16')",
        "my.yaml:3:40: data.imagesize: unknown key, did you mean image_size? (valid: name, arguments, folder, root, image_size, "
        "augmentation, on_bad_image, threads, decode_in, validation_share, images, classes)",
        "my.yaml:5:3: batch.global_size: must be greater than or equal to 1 (got 0)",
        "my.yaml:6:1: optimizer: trust_coefficient has no effect here (only with lars): remove it or set it to null",
        "my.yaml:7:1: learning_rate.base: is required and not given",
    ]


def test_a_key_written_twice_is_refused_and_both_lines_are_named() -> None:
    assert mistakes(SMALL + "batch: {global_size: 64}\n") == [
        "my.yaml:6:1: batch: written twice, first in line 4; keep one"
    ]


def test_what_is_not_yaml_is_told_with_its_place() -> None:
    assert mistakes("model: {name: lenet\n") == ["my.yaml:2:1: not YAML: expected ',' or '}', but got '<stream end>'"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "strategy.parameters.stages=[2]",
            "--set strategy.parameters.stages=[2]: strategy.parameters.stages: must be a string, an integer or a boolean "
            "(got [2])",
        ),
        ("batch.global_size=many", "--set batch.global_size=many: batch.global_size: must be an integer (got 'many')"),
        ("batch", "--set batch: expected section.key=value, for instance --set batch.global_size=256"),
        ("name.first=x", "--set name.first=x: name.first: has no keys below it"),
        ("batch.global_size=[", "--set batch.global_size=[: batch.global_size: not a YAML value (got '[')"),
        (
            "nothing.here=1",
            f"--set nothing.here=1: nothing: unknown key (valid: {SECTIONS})",
        ),
        ("modle.name=lenet", f"--set modle.name=lenet: modle: unknown key, did you mean model? (valid: {SECTIONS})"),
        (
            "log.every_steps=!!int many",
            "--set log.every_steps=!!int many: log.every_steps: not a YAML value (got '!!int many')",
        ),
        (
            "reduction.name=rings",
            "--set reduction.name=rings: reduction.name: unknown reduction 'rings', did you mean ring? "
            "(valid: auto, direct, double-tree, halving-doubling, hierarchical, horovod, native, parameter-server, "
            "pipelined-tree, powersgd, ring, top-k, torus, tree)",
        ),
    ],
)
def test_a_wrong_override_is_told_as_it_was_typed(override: str, told: str) -> None:
    assert mistakes(SMALL, override) == [told]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("learning_rate.power=2", "power has no effect here (only with schedule: poly)"),
        ("learning_rate.schedule=step", "schedule: step needs every_epochs"),
        ("learning_rate.scaling=linear", "scaling: linear needs base_batch"),
        ("learning_rate.scaling=cubic", "must be one of none, linear, sqrt, or an exponent from 0 to 1 (got 'cubic')"),
        (
            "learning_rate.decay_from=start",
            "decay_from has no effect here (only with schedule: poly, linear or cosine)",
        ),
        (
            "learning_rate.base_batch=16",
            "base_batch has no effect here (only with scaling: linear, sqrt or an exponent)",
        ),
        ("target.train_on=true", "train_on has no effect here (only with top1)"),
        ("learning_rate.warmup_from=zero", "warmup_from has no effect here (only with warmup_epochs above 0)"),
        ("optimizer.trust_clip=true", "trust_clip has no effect here (only with lars)"),
        ("optimizer.beta2=0.99", "beta2 has no effect here (only with lamb)"),
        ("data.root=/tmp", "root has no effect here (only with data that is read from files)"),
        ("model.auxiliary_heads=true", "auxiliary_heads has no effect here (only with googlenet"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(override: str, told: str) -> None:
    assert told in mistakes(SMALL, override)[0]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["learning_rate.scaling=linear", "learning_rate.base_batch=16"],
            "linear scaling over 32 times the batch fails",
        ),
        (
            ["optimizer.name=lars", "optimizer.excluded_rate=raw", "learning_rate.peak=10.0"],
            "learns nothing: use excluded_rate: base",
        ),
        (
            ["optimizer.name=lars", "optimizer.preset=timm", "learning_rate.peak=10.0"],
            "learns nothing: use excluded_rate: base",
        ),
    ],
)
def test_what_is_known_to_fail_without_batch_norm_is_refused_unless_forced(overrides: list[str], told: str) -> None:
    large = [*overrides, "batch.global_size=512"]
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_config("squeezenet-mini-digits", large)
    assert load_config("squeezenet-mini-digits", [*large, "force=true"]).config.force
    assert load_config("squeezenet-mini-digits", [*large, "model.batch_norm=true"]).config.model.is_normalised


def test_a_batch_per_rank_grows_with_the_ranks() -> None:
    text = SMALL.replace("global_size:", "per_rank:")
    assert text != SMALL
    one = load_text(text, "my.yaml").config.batch
    eight = load_text(text, "my.yaml", ["cluster.nodes=4", "cluster.ranks_per_node=2"])
    assert one.per_rank and eight.config.batch.global_size == 8 * one.per_rank
    assert ("batch.global_size", eight.config.batch.global_size, "per_rank times the ranks") in list(eight.rows())
    assert load_text(eight.annotated(), "copy").config == eight.config
    with pytest.raises(ConfigError, match="per_rank x ranks = .*remove one of the two"):
        load_text(eight.annotated(), "copy", ["cluster.nodes=1"])


def test_every_recipe_says_where_it_comes_from() -> None:
    recipes = {name for name in shipped_configs() if re.search(r"-b\d+$|-firecaffe$", name)}
    assert len(recipes) == 9
    for name in recipes:
        provenance = load_config(name).config.provenance
        assert provenance and len(provenance.source) > 20, name
        if "never run" in shipped_configs()[name].read_text():
            assert provenance.status != "published"


def test_each_value_tells_where_it_came_from() -> None:
    loaded = load_text(SMALL, "my.yaml", ["batch.global_size=64"])
    origins = {path: origin for path, _, origin in loaded.rows()}
    assert origins["model.name"] == "my.yaml:2:9"
    assert origins["batch.global_size"] == "--set batch.global_size=64"
    assert origins["seed"] == "default"


def test_the_annotated_config_reads_back_as_the_same_config() -> None:
    for path in shipped_configs().values():
        loaded = load_config(str(path), ["learning_rate.base=1e-5"])
        assert load_text(loaded.annotated(), "copy").config == loaded.config


def test_every_shipped_config_is_right_and_says_which_hardware_it_is_meant_for() -> None:
    names = set(shipped_configs())
    assert {
        "quickstart", "squeezenet-digits", "googlenet-digits", "lenet-mnist", "squeezenet-cifar10", "googlenet-tiny-imagenet",
        "alexnet-tiny-imagenet", "alexnet-dogs-vs-cats", "googlenet-firecaffe", "squeezenet-b512",
    } <= names  # fmt: skip
    for name, path in shipped_configs().items():
        assert load_config(name).config.name == name
        first = path.read_text().partition("\n")[0]
        assert first.startswith("# ") and "meant for" in first, first


def test_an_unknown_config_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown config 'quickstrat', did you mean quickstart"):
        load_config("quickstrat")
    with pytest.raises(UserError, match="no such config file"):
        load_config(str(tmp_path / "none.yaml"))


def test_a_relative_root_is_taken_from_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("lenet-mnist").config.data.root == str(tmp_path / "data" / "mnist")


def test_no_entry_of_the_schema_is_without_a_model_or_dataset_behind_it() -> None:
    from firetrain.config.sections.data import DATASETS
    from firetrain.config.sections.model import MODELS
    from firetrain.models.catalogue import MODELS as MADE

    assert set(MODELS) == set(MADE)
    assert list(DATASETS) == sorted(DATASETS)


def test_warmup_that_would_not_rise_is_refused() -> None:
    flat = ["learning_rate.warmup_epochs=2", "learning_rate.warmup_from=base"]
    with pytest.raises(
        ConfigError, match=re.escape("warmup_from: base (0.005) is not below the rate after warmup (0.005): use zero")
    ):
        load_config("squeezenet-digits", flat)
    assert load_config("squeezenet-digits", [*flat, "learning_rate.peak=0.01"]).config.peak_rate == 0.01


def test_noise_is_measured_between_equal_shares_only() -> None:
    uneven = ["log.noise_scale=true", "batch.global_size=64", "cluster.ranks_per_node=3"]
    with pytest.raises(
        ConfigError, match=re.escape("divides evenly among the ranks (batch.global_size: 64, ranks: 3)")
    ):
        load_config("squeezenet-digits", uneven)
    assert load_config("squeezenet-digits", [*uneven, "batch.global_size=66"]).config.log.noise_scale
