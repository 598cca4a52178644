"""Take screenshots of a report's page, at the width of a desktop and of a phone: python shoot.py REPORT.html FOLDER."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZES = {"desktop": (1280, 1700), "phone": (390, 844)}
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def shoot(report: Path, folder: Path) -> None:
    """Write desktop.png and phone.png: the upper part of the page, as it opens."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        for name, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(report.absolute().as_uri())
            page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), Path(sys.argv[2]))
