"""A name with parameters is parsed, or rejected with a correction."""

from __future__ import annotations

import pytest

from firetrain.config import load_text
from firetrain.config.spec import Spec, parse_list
from firetrain.errors import UserError

CONFIG = """\
name: my
model: {name: lenet, stem: small}
data: {name: digits, image_size: 16}
batch: {global_size: 32}
learning_rate: {base: 0.01}
reduction:
  name: hierarchical
  parameters: {inner: direct, outer: double-tree}
"""


def test_parameters_come_as_text_or_as_a_mapping() -> None:
    one = Spec.parse("hierarchical:inner=ring,outer=torus:columns=2")
    assert one == Spec.parse("hierarchical", {"inner": "ring", "outer": "torus:columns=2"})
    assert str(one) == "hierarchical:inner=ring,outer=torus:columns=2"
    assert Spec.parse("ring") == Spec("ring")


@pytest.mark.parametrize("text", ["", ":a=1", "ring:", "ring:a", "ring:a=", "ring:=1", "ring:a=1,"])
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(UserError, match="cannot read .*: parameters are written name:key=value,key=value"):
        Spec.parse(text)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="torus: columns is given twice"):
        Spec.parse("torus:columns=2", {"columns": 4})


def test_a_list_keeps_parameters_with_their_names() -> None:
    assert list(map(str, parse_list("native,hierarchical:inner=ring,outer=tree,torus:columns=2, ring"))) == [
        "native", "hierarchical:inner=ring,outer=tree", "torus:columns=2", "ring",
    ]  # fmt: skip


def test_a_config_takes_the_mapping_and_the_text() -> None:
    config = load_text(CONFIG, "my.yaml").config
    assert str(config.reduction.spec) == "hierarchical:inner=direct,outer=double-tree"
    override = ["reduction.parameters={}", "reduction.name=parameter-server:servers=2"]
    assert str(load_text(CONFIG, "my.yaml", override).config.reduction.spec) == "parameter-server:servers=2"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("reduction.parameters={iner: ring}", "unknown parameter 'iner', did you mean inner? (valid: inner, outer)"),
        ("reduction.name=ring", "ring has no parameters (inner=direct)"),
        ("reduction.name=torus:columns=x", "torus: columns is 'x', expected int"),
        ("reduction.name=torus:columns", "cannot read 'torus:columns'"),
        ("reduction.name=powersgd:rank=0", "powersgd: rank must be from 1 to 4096 (rank: 0)"),
        ("reduction.name=powersgd:rank=9223372036854775808", "powersgd: rank must be from 1 to 4096"),
        ("reduction.name=top-k:density=nan", "top-k: density must be from 1e-06 to 1 (density: nan)"),
        ("learning_rate.base=1e308", "learning_rate.base: must be less than or equal to 1000000"),
        ("cluster.timeout_s=1e-9", "cluster.timeout_s: must be greater than or equal to 1"),
        (
            "strategy.name=pipeline:schedule=onef",
            "strategy: pipeline: unknown schedule 'onef' (valid: 1f1b, gpipe)",
        ),
        (
            "strategy={name: tensor-parallel, parameters: {split: output}}",
            "unknown split 'output', did you mean outputs?",
        ),
        ("reduction.bucket_mib=0", "bucket_mib: must be greater than 0"),
        ("reduction.wire_dtype=int8", "must be one of float32, bfloat16, float16"),
    ],
)
def test_wrong_parameters_are_mistakes_of_the_config(override: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        load_text(CONFIG, "my.yaml", [override])
    assert told in str(error.value)
