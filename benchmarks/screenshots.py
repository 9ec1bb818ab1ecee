"""Screenshots of the report for the documentation, in a real Chromium: five strategies on the built-in graph, a typed
graph, and a run while it trains.

make screenshots        or:  .venv/bin/python benchmarks/screenshots.py [--runs FOLDER] [--out docs/images]
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import ROOT, fresh_folder, fullgraph, train

STRATEGIES = ("vanilla", "pipegcn", "sylvie-a", "varco", "mixgcn")
RANKS, EPOCHS = 4, 60
TYPED, LIVE_EPOCHS = "typed:nodes=2000", 30
# name, page, width and height of the picture, colours, start of the visible part
PICTURES = (
    ("report-one", "one", 1100, 1500, "light", "#top"),
    ("report-epoch", "one", 1100, 1000, "light", "#epoch"),
    ("report-five", "five", 1100, 1720, "light", "#top"),
    ("report-typed", "typed", 1100, 1500, "light", "#top"),
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


def typed(folder: Path) -> Path:
    """Return the run on a typed graph, trained if it is missing."""
    out = folder / "typed"
    if not (out / "result.json").exists():
        train(TYPED, out, "--parts", 2, "--epochs", EPOCHS, "--eval-every", 5)
    return out


def take_live(browser: Any, runs: Path, out: Path) -> Path:
    """Take the page of a run while it trains, as `fullgraph watch` serves it."""
    folder = runs / "live"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "fullgraph"]
    trains = [
        *command,
        "train",
        "demo",
        "--parts",
        "2",
        "--epochs",
        "100000",
        "--eval-every",
        "5",
        "--out",
        str(folder),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(trains, **quiet) as run:
        metrics = folder / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < LIVE_EPOCHS:
            if run.poll() is not None:
                raise SystemExit("the run to be watched ended early")
            time.sleep(0.5)
        with subprocess.Popen([*command, "watch", str(folder)], stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            tab = browser.new_page(viewport={"width": 1100, "height": 1100}, color_scheme="light")
            tab.goto(watch.stdout.readline().split()[2])
            path = shot(tab, out, "report-live")
            run.send_signal(signal.SIGINT)
            run.wait()
            watch.terminate()
    return path


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
    fullgraph("report", typed(runs), "--out", runs / "typed.html")
    fullgraph("report", *folders, "--out", runs / "five.html")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=chromium, args=[] if os.geteuid() else ["--no-sandbox"]
        )  # root's Chromium starts without a sandbox only
        for picture in PICTURES:
            print(f"wrote {take(browser, runs, options.out, *picture)}")
        print(f"wrote {take_live(browser, runs, options.out)}")
        browser.close()


def take(
    browser: Any, runs: Path, out: Path, name: str, page: str, width: int, height: int, colours: str, start: str
) -> Path:
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    tab.goto((runs / f"{page}.html").resolve().as_uri() + start)
    return shot(tab, out, name)


def shot(tab: Any, out: Path, name: str) -> Path:
    path = out / f"{name}.png"
    tab.screenshot(path=path)
    tab.close()
    with suppress(ImportError):  # reduces the bytes to a third
        from PIL import Image

        Image.open(path).quantize(128).save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
