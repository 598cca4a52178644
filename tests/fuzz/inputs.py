"""Inputs that nobody would write on purpose: mutations of shipped files, and odd values for every option."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from firetrain.cli.main import main
from firetrain.config import shipped_configs
from firetrain.config.comparison import shipped_comparisons
from firetrain.config.compression import shipped_recipes
from firetrain.launch.site import sites

ODD_TEXTS = (
    "", " ", "0", "-1", "1e400", "nan", "inf", "-inf", ".nan", "9" * 30, "9" * 5000, "1" * 400, "1.5", "1,2", "1,,2",
    ",", ":", "=", "::", "a=b", "a:b=c", "a:b=c,b=d", "ring", "ring:", "ring:x=1", "torus:columns=0",
    "torus:columns=99999999999999999999", "parameter-server:servers=-1", "pipelined-tree:arity=0",
    "hierarchical:inner=hierarchical", "hierarchical:inner=native", "hierarchical:outer=auto", "powersgd:rank=0",
    "top-k:density=2", "auto:candidates=", "native:algorithm=x", "\u00e9\u4e2d\U0001f600", "\u0661", "\u00b2",
    "x" * 300, "x" * 5000, "../..", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "~nobody-here/x", "~", "a\nb",
    "a\tb", "\x1b[31m", "%s%n", "{0}", "{", "}", "[", "]", "[[[[", "{a: {b: {c: ", "&a [*a]", "*a",
    "!!python/object:os.system x", "!!int x", "!!binary x", "!!set {}", "!!null 3", "'", '"', "`id`", "$(id)",
    "; reboot", "--help", "-", "--", "true", "null", "~x", "2026-01-01", "2026-99-99", "01:00:00", "1-00:00:00",
    "99:99:99", "0x10", "1_000", "+5", "1:1", "8:1", "1:131072", "1048577",
    "1048576", "pipeline:stages=2,micro_batches=99999999999", "64KiB", "0KiB", "999999GiB", "3B",
    "4B:64MiB", "mine.yaml", "mine.json", "mine.svg", "results", "generic", "testbed", "quickstart",
)  # fmt: skip
# longer than the name of a file may be, and than a path
LONG_TEXTS = ("x" * 300, "x" * 5000)
PLACEMENT = b"""\
ranks: 2
micro_batches: 1
schedule: gpipe
searched: {version: 1, model: lenet@28, images: 64, world: [0, 0], reduction: native, bucket_mib: 0.5, step_ms: 3.0,
           bound_ms: 2.0, profile: 0123abc}
default: {images: 2}
layers:
  conv2: {images: 1, outputs: 2, ranks: [1, 0]}
  fc1: {inputs: 2}
"""
# takes long
MANY_NODES = ["--dry-run", "--nodes", "1048576", "--", sys.executable]
# arguments that complete a command, so that each option can be tried; None: not run here, for the reason given
ARGUMENTS: dict[str, list[list[str]] | None] = {
    "launch": [
        ["quickstart", "--dry-run"],
        ["quickstart", "--on", "slurm", "--dry-run"],
        ["quickstart"],
        ["--dry-run", "--", sys.executable],
        MANY_NODES,
    ],
    "compare": [["quickstart", "--dry-run", "--nodes", "1"], ["firecaffe", "--dry-run", "--nodes", "1"]],
    "status": [["run"]],
    "logs": [["run"]],
    "cancel": [["run"]],
    "watch": [["run"]],
    "report": [[], ["results"]],
    "predict": [["quickstart", "--ranks", "1,2", "--reductions", "ring", "--strategies", "data-parallel"]],
    "search": [["quickstart", "--ranks", "2"]],
    # refused when all options have been read
    "simulate": [["quickstart", "--policies", "none"]],
    "config show": [["quickstart"]],
    "config check": [["quickstart"]],
    "topology show": [["tree"]],
    "topology check": [["tree", "--ranks", "4"]],
    "strategy list": [[]],
    "strategy show": [["one-weird-trick", "--model", "lenet", "--image-size", "28"]],
    "strategy check": [["pipeline", "--model", "lenet", "--image-size", "28", "--ranks", "4"]],
    "site show": [["generic"]],
    "bench allreduce": [["--reductions", "ring"]],
    "bench link": [[]],
    "bench profile": [["quickstart"]],
    "compress run": [["run", "--out", "out.fire", "--method", "svd"]],
    "compress show": [["mine.yaml"]],
    "compress open": [["mine.yaml", "--out", "out.pt"]],
    "evaluate": [["mine.yaml"]],
    "resume": [["results/run", "--dry-run"]],
    "bench server": [["quickstart", "--policies", "none"]],
    "bench slices": [["quickstart"]],
    "bench step": [["quickstart"]],
    "bench strategies": [["quickstart", "--strategies", "data-parallel"]],
    "bench input": [["images", "--count", "1", "--repeats", "2"]],
    "model show": [["lenet", "--image-size", "28", "--stem", "small"]],
    "data info": [["quickstart", "--sample", "1"]],
    "data pack": [["quickstart", "--out", "packed"]],
    "config list": [[]],
    "config schema": [[]],
    "topology list": [[]],
    "model list": [[]],
    "site list": [[]],
    "bench gpu": None,  # takes minutes
    "train": None,  # would train
    "trials": None,
    "preflight": None,  # waits for other ranks
    "doctor": None,  # takes seconds, and has no options with values
    "site check": None,  # contacts Slurm
}


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command, by the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def odd_arguments_of_others(draw: random.Random, often: int) -> Iterator[tuple[click.Command, list[str]]]:
    """Odd values for the options of the commands that are not run; these are only parsed."""
    for words, command in commands():
        if ARGUMENTS[words] is None:
            for option in (p for p in command.params if isinstance(p, click.Option) and not p.is_flag):
                for text in draw.sample(ODD_TEXTS, often):
                    yield command, [option.opts[0], text]


# valid, but slow
SLOW = {
    ("topology check", "1_000"), ("bench allreduce", "1_000"),
    ("predict", "/"), ("predict", "../.."),
}  # fmt: skip
# options with which a command draws pictures
DRAWS = ("--plots", "--html")


def odd_options(draw: random.Random, often: int) -> Iterator[list[str]]:
    """Odd values for each option of each command that may be tried, and odd arguments.

    Valid but slow inputs are left out, such as searching / or verifying a thousand ranks.
    """
    for words, command in commands():
        for beginning in ARGUMENTS[words] or []:
            options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
            for option in options:
                always = LONG_TEXTS if isinstance(option.type, click.Path) else ()
                is_slow = option.opts[0] in DRAWS or beginning == MANY_NODES
                some = draw.sample(ODD_TEXTS, 1 if is_slow else often)
                for text in dict.fromkeys((*always, *some)):
                    if (words, text) not in SLOW:
                        yield [*words.split(), *_before_command(beginning, [option.opts[0], text])]
            if any(isinstance(p, click.Argument) for p in command.params):
                for text in draw.sample(ODD_TEXTS, often):
                    if text != "/" and "--" not in beginning:
                        yield [*words.split(), text, *beginning[1:]]


def _before_command(beginning: Sequence[str], option: Sequence[str]) -> list[str]:
    """The words of a command with an option more, which stands before the -- of the user's own command."""
    end = beginning.index("--") if "--" in beginning else len(beginning)
    return [*beginning[:end], *option, *beginning[end:]]


def odd_overrides(draw: random.Random, often: int) -> Iterator[list[str]]:
    """Odd values for each key of a config, and odd keys."""
    keys = list(_keys("quickstart"))
    for key in keys:
        for text in draw.sample(ODD_TEXTS, often):
            yield ["config", "show", "quickstart", "--set", f"{key}={text}"]
    for _ in range(30 * often):
        key = ".".join(draw.choice([*keys, *ODD_TEXTS]) for _ in range(draw.randint(1, 4)))
        yield ["config", "show", draw.choice(list(shipped_configs())), "--set", f"{key}={draw.choice(ODD_TEXTS)}"]


def odd_files(draw: random.Random, count: int) -> Iterator[tuple[bytes, list[str]]]:
    """Mutated configs, comparisons, sites, recipes and placements, as the content of mine.yaml with a command that reads it."""
    kinds: list[tuple[list[Any], list[str]]] = [
        (list(shipped_configs().values()), ["config", "check", "./mine.yaml"]),
        (list(shipped_configs().values()), ["launch", "./mine.yaml", "--dry-run", "--on", "slurm"]),
        (list(shipped_comparisons().values()), ["compare", "./mine.yaml", "--dry-run", "--nodes", "1"]),
        (list(sites().values()), ["site", "show", "./mine.yaml"]),
        (list(sites().values()), ["launch", "quickstart", "--on", "slurm", "--site", "./mine.yaml", "--dry-run"]),
        (list(shipped_recipes().values()), ["compress", "run", "nowhere", "--recipe", "./mine.yaml", "--out", "m.fire"]),
        ([PLACEMENT], ["strategy", "check", "./mine.yaml", "--model", "lenet", "--image-size", "28"]),
        ([PLACEMENT], ["launch", "lenet-mnist", "--dry-run", "--ranks-per-node", "2", "--set", "data.root=null", "--set",
                       "data.name=digits", "--set", "strategy.name=./mine.yaml"]),
    ]  # fmt: skip
    for number in range(count):
        sources, command = kinds[number % len(kinds)]
        source = draw.choice(sources)
        yield mutated(source if isinstance(source, bytes) else source.read_bytes(), draw), command


# commands that read records
READERS = [
    ["report", "results"], ["report", "results", "--json"], ["report", "results", "--each"], ["status", "results/run"],
    ["predict", "quickstart", "--check", "results/run"], ["logs", "results/run"], ["resume", "results/run"],
    ["report", "results/comparison.json"], ["predict", "quickstart", "--profile", "./results/profile.json", "--ranks", "1,4"],
    ["predict", "quickstart", "--runs", "results", "--images", "1437", "--ranks", "1,2"], ["watch", "results/run"],
    ["status", "results/open"], ["resume", "results/open", "--dry-run"], ["cancel", "results/open"], ["logs", "results/open"],
    ["report", "results/run", "--export", "mlperf", "--into", "out"],
    ["data", "info", "quickstart", "--set", "data.name=packed", "--set", "data.root=results/packed"],
]  # fmt: skip

# which draws pictures
DRAWN = ["report", "results/open", "--html", "page.html"]


def odd_records(
    draw: random.Random, count: int, record: dict[str, bytes]
) -> Iterator[tuple[dict[str, bytes], list[str]]]:
    """Mutated files of a recorded run, each with a command that reads it."""
    for number in range(count):
        name = draw.choice(list(record))
        changed = mutated_json(record[name], draw) if draw.random() < 0.6 else mutated(record[name], draw)
        yield {**record, name: changed}, DRAWN if number % 100 == 0 else READERS[number % len(READERS)]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A text with one to four changes: lines deleted, repeated or swapped, values replaced, bytes flipped, the end cut off."""
    for _ in range(draw.randint(1, 4)):
        lines = content.split(b"\n")
        place = draw.randrange(len(lines))
        match draw.randrange(8):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, lines[place])
            case 2:
                other = draw.randrange(len(lines))
                lines[place], lines[other] = lines[other], lines[place]
            case 3 | 4:
                key, colon, _ = lines[place].partition(b":")
                lines[place] = key + colon + b" " + draw.choice(ODD_TEXTS).encode()
            case 5:
                text = bytearray(content or b" ")
                for _ in range(draw.randint(1, 3)):
                    text[draw.randrange(len(text))] = draw.randrange(256)
                lines = bytes(text).split(b"\n")
            case 6:
                lines = content[: draw.randrange(len(content) + 1)].split(b"\n")
            case 7:
                lines[place] = b" " * draw.randint(0, 9) + lines[place] + draw.choice(ODD_TEXTS).encode()
        content = b"\n".join(lines)
    return content


def mutated_json(content: bytes, draw: random.Random) -> bytes:
    """A JSON text with one value replaced by a value of another type; if there are several lines, in one of them."""
    lines = content.split(b"\n")
    try:
        json.loads(content)
        place, text = None, content
    except ValueError:
        place = draw.randrange(len(lines))
        text = lines[place]
    try:
        value = json.loads(text)
    except ValueError:
        return mutated(content, draw)
    changed = json.dumps(_with_another_value(value, draw)).encode()
    if place is None:
        return changed
    lines[place] = changed
    return b"\n".join(lines)


def _with_another_value(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {other: inner for other, inner in value.items() if other != key}
        return {**value, key: _with_another_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [*value[:place], _with_another_value(value[place], draw), *value[place + 1 :]]
    odd = (None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "x", [], {}, [1], {"a": 1}, "2026-99-99")
    return draw.choice(odd)


def _keys(name: str) -> Iterator[str]:
    from firetrain.config import load_config

    for path, _, _ in load_config(name).rows():
        yield path


def shown(command: list[str]) -> str:
    """The command as it could be typed; long arguments are cut."""
    text = shlex.join(command)
    return text if len(text) <= 300 else f"{text[:300]}..."


def shipped_record(folder: Path) -> dict[str, bytes]:
    """The files of a recorded run and files that belong to runs, by path."""
    from recorded import record

    from firetrain.config import load_config
    from firetrain.data.digits import digits
    from firetrain.data.images import Arrays, Dataset
    from firetrain.data.packed import pack

    run = record(folder / "results", directory="run")
    run.config_path.write_text(load_config("quickstart").annotated())
    unfinished = record(folder / "results", directory="open", state="submitted", jobs=[7])
    unfinished.config_path.write_text(run.config_path.read_text())
    (unfinished.path / "summary.json").unlink(missing_ok=True)
    answer = {"asked": time.time(), "numbers": [7], "jobs": [{"id": 7, "state": "RUNNING", "reason": ""}]}
    for name, text in (
        ("attempt-0/logs/rank-0000.log", "epoch 1\n"),
        ("attempt-0/job", "7\n"),
        ("attempt-0/ranks/0.exit", "1700000000.0 0 here 0\n"),
        ("slurm.json", json.dumps(answer)),
    ):
        for one in (run, unfinished):
            path = one.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    few = (Arrays(images.pixels[:9], images.labels[:9], images.classes) for images in (digits().train, digits().test))
    pack(Dataset("digits", *few), folder / "results" / "packed", None, 1 << 20, threads=1, skip_bad=False)
    root = Path(__file__).parents[2]
    (folder / "results" / "comparison.json").write_bytes(
        (root / "results" / "comparisons" / "firecaffe" / "comparison.json").read_bytes()
    )
    (folder / "results" / "profile.json").write_bytes(
        (root / "configs" / "profiles" / "uncalibrated.json").read_bytes()
    )
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "results").rglob("*"))
        if path.is_file()
    }
