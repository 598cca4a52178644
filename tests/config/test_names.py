"""Names from other packages, also if such a package is broken, or if two of them provide the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firetrain.config.names import REDUCTIONS, TOPOLOGIES, check_reduction, installed_names, load_entry_point
from firetrain.config.spec import Spec
from firetrain.errors import UserError

Run = Callable[..., "subprocess.CompletedProcess[str]"]
WORKING = """from firetrain.topology import find_topology


def {name}(world):
    \"\"\"A ring by another name.\"\"\"
    return find_topology("ring")(world)
"""


@pytest.fixture
def bring(tmp_path: Path) -> Callable[..., None]:
    """Install a package into a folder as pip does: its module, and the metadata with its entry points."""

    def package(name: str, entries: str, module: str = "") -> None:
        metadata = tmp_path / "site" / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(entries)
        (tmp_path / "site" / f"{name.replace('-', '_')}.py").write_text(module)

    return package


@pytest.fixture
def firetrain(tmp_path: Path) -> Run:
    """Run firetrain with these packages installed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
        command = [sys.executable, "-m", "firetrain", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    return run


def topology(name: str, module: str) -> str:
    return f"[{TOPOLOGIES}]\n{name} = {module}:{name}\n"


def test_a_package_that_cannot_be_imported_is_named_with_the_reason(bring: Callable[..., None], firetrain: Run) -> None:
    bring("loop-topology", topology("loop", "loop_topology"), "import no_such_library\n")
    done = firetrain("topology", "show", "loop")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "topology loop cannot be loaded from loop_topology:loop" in done.stderr
    assert "No module named 'no_such_library'" in done.stderr
    assert "reinstall or uninstall the package that provides it, loop-topology" in done.stderr


def test_a_package_without_the_function_it_names_is_told_too(bring: Callable[..., None], firetrain: Run) -> None:
    bring("loop-topology", topology("loop", "loop_topology"), "print = 1\n")
    done = firetrain("config", "check", "quickstart", "--set", "reduction.name=loop:inner=ring")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "AttributeError" in done.stderr and "loop-topology" in done.stderr


def test_the_list_goes_on_after_a_broken_package(bring: Callable[..., None], firetrain: Run) -> None:
    bring("a-broken-one", topology("broken", "a_broken_one"), "1 / 0\n")
    bring("a-good-one", topology("good", "a_good_one"), WORKING.format(name="good"))
    done = firetrain("topology", "list")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "ZeroDivisionError: division by zero" in lines["broken"]
    assert lines["good"].endswith("A ring by another name. [a-good-one]") and "[firetrain]" in lines["ring"]


def test_one_name_from_two_packages_is_refused_with_both(bring: Callable[..., None], firetrain: Run) -> None:
    for package in ("first", "second"):
        bring(package, topology("loop", package), WORKING.format(name="loop"))
    for command in (("topology", "show", "loop"), ("config", "check", "quickstart", "--set", "reduction.name=loop")):
        done = firetrain(*command)
        assert done.returncode == 2, done.stdout
        assert "loop comes from several packages, first and second: uninstall all but one" in done.stderr


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"unknown topology 'rign', did you mean ring\? \(valid: .*torus"):
        load_entry_point(TOPOLOGIES, "rign")
    with pytest.raises(UserError, match="unknown reduction 'nativ', did you mean native"):
        check_reduction(Spec.parse("nativ"))


@pytest.mark.parametrize("group", [TOPOLOGIES, REDUCTIONS])
def test_every_name_that_we_bring_loads(group: str) -> None:
    names = installed_names(group)
    assert len(names) >= 6 and list(names) == sorted(names)
    assert all(callable(load_entry_point(group, name)) for name in names)


def test_a_package_may_bring_a_model(bring: Callable[..., None], firetrain: Run) -> None:
    bring(
        "my-nets", "[firetrain.models]\nmine = my_nets:net\n", "raise SystemExit('imported')\ndef net(classes): pass\n"
    )
    done = firetrain("config", "show", "quickstart", "--set", "model={name: mine}")
    assert done.returncode == 0 and "name: my_nets:net" in done.stdout, done.stderr
    done = firetrain("config", "check", "quickstart", "--set", "model={name: mime}")
    assert done.returncode == 2 and "did you mean mine?, or a model of your own" in done.stderr
