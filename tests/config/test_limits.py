"""What no config can hold is refused quickly and with little memory; numbers that size something have bounds."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typed import SMALL, mistakes

from firetrain.config import Config, load_config, load_text
from firetrain.config.comparison import Comparison
from firetrain.config.compression import CompressionRecipe
from firetrain.errors import UserError
from firetrain.launch.site import Site
from firetrain.records.profile import Profile
from firetrain.strategy.file import PlacementFile

LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
# (content of the file, expected message); {path} is replaced by the file's path
UNREADABLE = {
    "a NUL byte": (b"name: x\nseed: \0\n", "{path}:2:7: not YAML: the character '\\x00' is not allowed in it"),
    "an escape": (b"name: x\n\nmodel: \x1b[1m\n", "{path}:3:8: not YAML: the character '\\x1b' is not allowed in it"),
    "Latin-1": ("name: x\n# Gr\xfc\xdfe\n".encode("latin-1"), "{path}:2:5: not UTF-8 text: byte 0xfc"),
    "UTF-16": ("name: x\n".encode("utf-16"), "{path}:1:1: not UTF-8 text: byte 0xff"),
    "ten megabytes": (b"[" * (10 << 20), "{path}: too large for a config (limit 64 KiB)"),
    "brackets": (b"a: " + b"[" * 60_000, "{path}:1:35: not YAML: nested more than 32 levels deep"),
    "braces": (b"{a: " * 15_000, "{path}:1:126: not YAML: nested more than 32 levels deep"),
    "a billion laughs": (LAUGHS.encode(), "its aliases expand to more than 10,000 values"),
    "a list within itself": (
        b"a: &a [*a]\n",
        "its aliases expand to more than 10,000 values, or to more than 32 levels",
    ),
    "a number of 5000 digits": (b"seed: " + b"9" * 5000, "{path}:1:7: not YAML: '9999999999"),
    "no number": (b"seed: !!float many\n", "{path}:1:7: not YAML: 'many' is not a valid float"),
    "an object": (b"seed: !!python/object:os.system {}\n", "seed: must be an integer (got {{}})"),
    "a list": (b"- 1\n", "{path}:1:1: expected a mapping of sections"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_no_config_can_hold_is_told_with_its_place_at_once(name: str, tmp_path: Path) -> None:
    content, told = UNREADABLE[name]
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    started_s = time.process_time()
    with pytest.raises(UserError) as caught:
        load_config(str(path))
    took_s = time.process_time() - started_s
    assert told.format(path=path) in str(caught.value)
    tracemalloc.start()  # not timed, because tracing itself takes time
    with pytest.raises(UserError):
        load_config(str(path))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 1 and most_bytes < 200e6


def test_a_folder_a_pipe_and_a_name_that_is_too_long_are_no_configs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name, told in (
        ("pipe.yaml", "is not a regular file"),
        ("folder.yaml", "is a folder, not a file"),
        (f"{'x' * 5000}.yaml", "no such config file"),
    ):
        with pytest.raises(UserError, match=told):
            load_config(str(tmp_path / name))


@pytest.mark.parametrize("key", ["? [a]\n: 1", "? {a: b}\n: 1", "{[a]: 1}"])
def test_a_list_or_a_mapping_is_no_key(key: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{SMALL}optimizer:\n  " + key.replace("\n", "\n  ") + "\n")
    with pytest.raises(UserError) as caught:
        load_config(str(tmp_path / "mine.yaml"))
    line = SMALL.count("\n") + 2
    assert f"mine.yaml:{line}:" in str(caught.value) and "cannot be a key" in str(caught.value)
    assert "unicode string" not in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_config(str(tmp_path / "mine.yaml")).config.name == "small"


def test_a_date_is_text_and_what_a_config_repeats_can_be_an_alias() -> None:
    text = SMALL.replace("small", "2026-01-02") + "target: {max_epochs: &often 3, evaluate_every_epochs: *often}\n"
    config = load_text(text, "my.yaml").config
    assert config.name == "2026-01-02" and config.target.evaluate_every_epochs == 3


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("cluster.nodes=9223372036854775808", "cluster.nodes: must be less than or equal to 1048576"),
        ("batch.global_size=99999999999", "batch.global_size: must be less than or equal to 16777216"),
        ("target.max_epochs=10000000", "target.max_epochs: must be less than or equal to 1000000"),
        ("reduction.bucket_mib=1e300", "reduction.bucket_mib: must be less than or equal to 65536"),
        ("cluster.timeout_s=.inf", "cluster.timeout_s: must be"),
        ("learning_rate.base=.nan", "learning_rate.base: must be"),
        ("learning_rate.base=.inf", "learning_rate.base: must be"),
        ("data.threads=100000", "data.threads: must be less than or equal to 1024"),
    ],
)
def test_whatever_sizes_something_has_an_upper_bound(override: str, told: str) -> None:
    assert told in mistakes(SMALL, override)[0]


def test_ranks_are_counted_over_all_nodes() -> None:
    told = mistakes(SMALL, "cluster.nodes=1048576", "cluster.ranks_per_node=2")
    assert told == [
        "--set cluster.nodes=1048576: cluster: 1048576 nodes with 2 ranks each are 2097152 ranks; the limit is 1048576"
    ]


def test_every_number_of_the_schema_is_bounded_above() -> None:
    """Otherwise a typing error could exhaust memory, or end in infinity. Of files that firetrain writes, only integers matter."""
    unbounded = []

    def look(node: Any, path: str) -> None:
        if isinstance(node, dict):
            kinds = ("integer",) if path.startswith(("PlacementFile", "Profile")) else ("integer", "number")
            if node.get("type") in kinds and not node.keys() & {"maximum", "exclusiveMaximum", "const", "enum"}:
                unbounded.append(path)
            for key, inner in node.items():
                look(inner, f"{path}/{key}")
        elif isinstance(node, list):
            for number, inner in enumerate(node):
                look(inner, f"{path}/{number}")

    for schema in (Config, Comparison, CompressionRecipe, Site, PlacementFile, Profile):
        look(schema.model_json_schema(), schema.__name__)
    # parameters of a reduction or strategy are checked against the world by itself, ports as a pair, exponents with rules
    own = (
        "ReductionSection/properties/parameters", "StrategySection/properties/parameters", "Site/properties/ports",
        "LearningRateSection/properties/scaling",
    )  # fmt: skip
    assert [path for path in unbounded if not any(name in path for name in own)] == []
