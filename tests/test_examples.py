"""Every public class and function of a package has an example, and the examples print the output that they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "checkpoint",
    "cluster",
    "config",
    "optim.lamb",
    "optim.lars",
    "optim.learning_rate",
    "predict",
    "records",
    "reduction.interface",
    "strategy",
    "topology",
)
# public names of modules that have other names, too
ALSO = (
    "reduction.context.Context",
    "transport.transport.Transport",
    "models.graph.trace",
    "parallel.catalogue.worker_of",
    "ddp.Reducer",
    "ddp.hook",
    "config.spec.Within",
    "strategy.policy.Policy",
    "strategy.policy.find_policy",
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def offered() -> dict[str, object]:
    """The objects that packages list in __all__, by full name; constants and aliases have no docstring of their own."""
    found = {}
    for name in ALSO:
        module, _, own = name.rpartition(".")
        found[name] = getattr(importlib.import_module(f"firetrain.{module}"), own)
    for package in PACKAGES:
        module = importlib.import_module(f"firetrain.{package}")
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("firetrain."):
                found[f"{package}.{name}"] = value
    return found


@pytest.mark.parametrize("name", offered())
def test_what_a_package_offers_has_an_example_that_holds(name: str) -> None:
    value = offered()[name]
    module = inspect.getmodule(value)
    tests = doctest.DocTestFinder(recurse=False).find(value, module=module)
    assert any(test.examples for test in tests), f"{name} has no example"
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in tests:
        runner.run(test, out=told.append)
    assert not runner.failures, "".join(told)


def test_the_examples_of_all_other_functions_hold_too() -> None:
    names = [path.relative_to(ROOT) for path in (ROOT / "firetrain").rglob("*.py") if ">>> " in path.read_text()]
    assert len(names) > 40
    for name in names:
        result = doctest.testmod(importlib.import_module(".".join(name.with_suffix("").parts)), optionflags=OPTIONS)
        assert not result.failed, f"{name}: see above"


@pytest.mark.parametrize(("page", "least"), [("python.md", 15), ("topology.md", 17), ("your-own-script.md", 10)])
def test_the_examples_of_a_page_hold(page: str, least: int) -> None:
    result = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=OPTIONS)
    assert result.attempted >= least and not result.failed


def test_the_page_on_python_names_everything_that_is_offered() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    missing = [name for name in offered() if f"`{name.rpartition('.')[2]}`" not in page]
    assert not missing
