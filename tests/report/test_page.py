"""The page, opened from disk in a browser without network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import need
from recorded import record

from firetrain.report.history import find, read_all
from firetrain.report.page import page, write_page
from firetrain.report.plots import plots, write_plots
from firetrain.report.report import Report

CHROMIUM = shutil.which("chromium")
# without these, the browser contacts hosts of its vendor at every start
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def made(folder: Path) -> Report:
    return Report.of(*read_all(find([], folder)), "mlperf", None, olympic=False)


def fill(folder: Path) -> None:
    for ranks in (1, 2, 4):
        for reduction in ("tree", "ring"):
            for seed in (1, 2, 3):
                overrides = (f"reduction.name={reduction}", f"cluster.ranks_per_node={ranks}", "target.train_on=true")
                top1 = [1 - 0.7 * 0.7**epoch for epoch in range(12)]
                record(
                    folder,
                    "quickstart",
                    *overrides,
                    seed=seed,
                    epoch_s=8 / ranks + seed / 10 + len(reduction),
                    top1=top1,
                )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    need(None if CHROMIUM else "no chromium (Debian: chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of eighteen runs."""
    folder = tmp_path_factory.mktemp("page")
    fill(folder / "runs")
    write_page(made(folder / "runs"), folder / "report.html")
    return folder / "report.html"


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """A page, and its errors and requests that should not occur."""
    tab, wrong = browser.new_context(**options).new_page(), list[str]()
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url))
    tab.goto(path.as_uri())
    return tab, wrong


def column(tab: Any, heading: str) -> list[str]:
    """The visible cells of a column of the main table."""
    script = """heading => { const rows = [...document.querySelectorAll('#main-table tr')];
      const place = [...rows[0].cells].findIndex(cell => cell.textContent.trim() === heading);
      return rows.slice(1).filter(row => !row.hidden).map(row => row.cells[place].textContent.trim()) }"""
    return list(tab.evaluate(script, heading))


def test_tables_sort_and_filter_and_the_theme_changes_without_a_word_in_the_console(
    browser: Any, tmp_path: Path
) -> None:
    fill(tmp_path / "runs")
    report = made(tmp_path / "runs")
    write_page(report, tmp_path / "report.html")
    tab, wrong = opened(browser, tmp_path / "report.html")
    button = tab.locator("#main-table button", has_text=re.compile("^time-to-accuracy s$"))
    button.click()
    times = [float(cell) for cell in column(tab, "time-to-accuracy s")]
    assert times == sorted(times) and len(times) == 6 and times[0] < times[-1]
    button.press("Enter")
    assert [float(cell) for cell in column(tab, "time-to-accuracy s")] == times[::-1], (
        "by the keyboard, the other way round"
    )
    assert tab.locator("#main-table th[aria-sort=descending]").count() == 1
    tab.get_by_label("filter rows").fill("ring ranks_per_node=4")
    assert column(tab, "reduction") == ["ring"] and tab.locator("#shown").text_content() == "1 of 6"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(paper)
    tab.get_by_role("button", name="toggle dark mode").click()
    assert tab.evaluate(paper) != light
    # the nearest point of a plot is described as text
    canvas = tab.locator("figure.plot .canvas").first
    canvas.scroll_into_view_if_needed()
    marks = json.loads(tab.locator("figure.plot").first.get_attribute("data-marks"))
    box, view = canvas.bounding_box(), tab.evaluate("document.querySelector('figure.plot svg').viewBox.baseVal.width")
    left, top, text = marks[len(marks) // 2]
    tab.mouse.move(box["x"] + left * box["width"] / view, box["y"] + top * box["width"] / view)
    told = tab.locator(".hover").first.text_content()
    assert told.partition(": ")[2] == text.partition(": ")[2], "of curves that lie on each other one is named"
    assert not wrong


@pytest.mark.parametrize(
    "options", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}}]
)
def test_it_is_fit_for_phones_and_screen_readers(browser: Any, written: Path, options: dict[str, Any]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab, wrong = opened(browser, written, **options)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it does not scroll sideways as a whole"
    found = Axe().run(tab).response["violations"]
    assert not [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] and not wrong


def test_a_run_s_name_is_only_text(browser: Any, tmp_path: Path) -> None:
    name = "<script>alert(1)<!--$x$ \"'&"
    (tmp_path / "runs" / name.replace("/", "")).parent.mkdir()
    record(tmp_path / "runs", directory=name, arm="<img src=x onerror=alert(2)>$", hosts=["<b>host</b>"])
    write_page(made(tmp_path / "runs"), tmp_path / "report.html")
    tab, wrong = opened(browser, tmp_path / "report.html")
    assert name in tab.locator("body").text_content() and not wrong
    assert tab.locator("img[src=x]").count() == 0 and tab.locator("body b", has_text="host").count() == 0


def test_fifty_runs_need_less_than_a_megabyte_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    for number in range(50):
        overrides = ("target.train_on=true", f"batch.global_size={16 + number // 2}")
        record(tmp_path, "quickstart", *overrides, top1=[1 - 0.9 * 0.95**epoch for epoch in range(90)], seed=number)
    text = page(made(tmp_path))
    assert len(text.encode()) < 1e6
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", text) and "@import" not in text


def test_plots_are_files_too(tmp_path: Path) -> None:
    fill(tmp_path / "runs")
    report = made(tmp_path / "runs")
    written = {path.name for path in write_plots(report, tmp_path / "plots")}
    names = ("accuracy-time", "accuracy-epochs", "loss", "learning-rate", "steps", "scaling")
    assert written == {f"{name}{suffix}" for name in names for suffix in (".svg", ".png")}
    assert [plot.name for plot in plots(report)] == list(names)


def test_the_server_makes_the_page_anew_and_answers_this_machine_only(tmp_path: Path) -> None:
    record(tmp_path / "results", directory="first")
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "firetrain", "report", "--serve"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        address = server.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)

        def look(**headers: str) -> str:
            request = urllib.request.Request(address, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())

        assert "first" in look() and 'http-equiv="refresh"' in look()
        record(tmp_path / "results", directory="second-one")
        assert "second-one" in look()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            look(Host="evil.example")
    finally:
        server.terminate()
        server.wait(20)


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path, firetrain: Callable[..., Any]) -> None:
    record(tmp_path / "results")
    done = firetrain("report", "--html", "nonesuch/report.html")
    assert (
        done.returncode == 73 and "cannot write nonesuch/report.html" in done.stderr and "Traceback" not in done.stderr
    )
