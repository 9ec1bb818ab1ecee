"""Screenshots of the report for the documentation: five strategies on the built-in graph, in a real Chromium.

make screenshots        or:  .venv/bin/python benchmarks/screenshots.py [--runs FOLDER] [--out docs/images]
"""

import argparse
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import ROOT, fresh_folder, fullgraph, train

STRATEGIES = ("vanilla", "pipegcn", "sylvie-a", "varco", "mixgcn")
RANKS, EPOCHS = 4, 60
# name, page, width and height of the picture, colours, start of the visible part
PICTURES = (
    ("report-one", "one", 1100, 1500, "light", "#top"),
    ("report-epoch", "one", 1100, 1000, "light", "#epoch"),
    ("report-five", "five", 1100, 1720, "light", "#top"),
    ("report-dark", "one", 1100, 1000, "dark", "#epoch"),
    ("report-phone", "one", 390, 1200, "light", "#epoch"),
)


def trained(folder: Path) -> list[Path]:
    """Return the runs, training those that are missing."""
    found = []
    for strategy in STRATEGIES:
        out = folder / strategy
        if not (out / "result.json").exists():
            print(f"training demo with {strategy} on {RANKS} ranks ...", flush=True)
            train("demo", out, "--parts", RANKS, "--strategy", strategy, "--epochs", EPOCHS, "--eval-every", 5)
        found.append(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="a folder of such runs [default: train them]")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("the pictures need playwright: pip install playwright") from None
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("the pictures need Chromium: apt-get install chromium")
    os.chdir(ROOT)  # so that pages do not show folders of this machine
    runs = options.runs or fresh_folder("screenshots").relative_to(ROOT)
    folders = trained(runs)
    fullgraph("report", folders[0], "--out", runs / "one.html")
    fullgraph("report", *folders, "--out", runs / "five.html")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=chromium, args=[] if os.geteuid() else ["--no-sandbox"]
        )  # root's Chromium starts without a sandbox only
        for picture in PICTURES:
            print(f"wrote {take(browser, runs, options.out, *picture)}")
        browser.close()


def take(
    browser: Any, runs: Path, out: Path, name: str, page: str, width: int, height: int, colours: str, start: str
) -> Path:
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    tab.goto((runs / f"{page}.html").resolve().as_uri() + start)
    path = out / f"{name}.png"
    tab.screenshot(path=path)
    tab.close()
    with suppress(ImportError):  # reduces the bytes to a third
        from PIL import Image

        Image.open(path).quantize(128).save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
