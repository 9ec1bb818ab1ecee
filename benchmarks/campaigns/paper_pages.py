"""Make the tables of a paper's page from its campaigns.

    python benchmarks/campaign.py paper_pages pipegcn --data FOLDER [--device cuda --jobs 6] [--limit-s 540]
    .venv/bin/python benchmarks/campaign.py paper_pages pipegcn --report --write

Ranks are simulated. Results that are in the files already are not trained again. Tables are printed as Markdown;
--write puts them into docs/papers/PAPER.md instead.
"""

import argparse
import shlex
import subprocess
import sys
import time
from math import inf
from pathlib import Path

from campaign import RESULTS
from common import ROOT

DOCS = ROOT / "docs"
OPENS, CLOSES = "<!-- figures -->", "<!-- end of figures -->"  # around the tables of a page
SIMULATED = ("wire_accuracy", "late_halos", "varco_budget")  # campaigns of complete runs
PAGES = {
    "pipegcn": (
        "wire_accuracy --strategies pipegcn pipegcn-gf",
        "late_halos --strategies pipegcn pipegcn-gf",
    ),
    "sylvie": (
        "wire_accuracy --strategies sylvie-s sylvie-a sylvie-a-bounded",
        "late_halos --strategies sylvie-s sylvie-a sylvie-a-bounded",
    ),
    "varco": (
        "wire_accuracy --strategies varco",
        "varco_budget",
        "varco_budget --every-layer --strategies none 'fixed -o ratio=1' 'fixed -o ratio=4' 'fixed -o ratio=16' "
        "'varco -o slope=2' 'varco -o slope=5'",
        "varco_budget --readings",
    ),
    "gnnpipe": (
        "deep_accuracy",
        "deep_accuracy --study techniques --models resgcn --layers 16 --only amazon_photo squirrel",
        "deep_accuracy --study settings --models resgcn --layers 32 --only squirrel",
        "deep_accuracy --study switches --models resgcn --layers 16 --only amazon_photo squirrel",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=PAGES)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz graphs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--seeds", type=int, help="instead of each campaign's number")
    parser.add_argument("--epochs", type=int, help="instead of each case's number")
    parser.add_argument("--limit-s", type=float, default=inf, metavar="SECONDS", help="start none after this time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder with one file of outcomes per campaign")
    parser.add_argument("--report", action="store_true", help="show the results files and train nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into the paper's page")
    options = parser.parse_args()
    began, tables, failed = time.monotonic(), [], False
    for line in PAGES[options.paper]:
        left = max(0.0, options.limit_s - (time.monotonic() - began))
        done = subprocess.run(command(line, options, left), stdout=subprocess.PIPE, text=True, check=False)
        tables.append(done.stdout.strip())
        failed = failed or done.returncode != 0
    text = "\n\n".join(table for table in tables if table)
    if options.write and text:
        write(DOCS / "papers" / f"{options.paper}.md", text)
    else:
        print(text)
    if failed:
        raise SystemExit(1)


def command(line: str, options: argparse.Namespace, left: float) -> list[str]:
    """Return a campaign's command."""
    name, *own = shlex.split(line)
    shared = ["--data", options.data, "--device", options.device, "--jobs", options.jobs, "--limit-s", left]
    shared += ["--results", options.results / f"{name}.jsonl", "--markdown"]
    for flag, value in (("--seeds", options.seeds), ("--epochs", options.epochs)):
        shared += [] if value is None else [flag, value]
    shared += ["--report"] if options.report else []
    shared += ["--simulated"] if name in SIMULATED else []
    return [sys.executable, str(ROOT / "benchmarks" / "campaign.py"), name, *own, *map(str, shared)]


def write(page: Path, tables: str) -> None:
    """Replace the text between the two marks of a page."""
    head, opened, rest = page.read_text().partition(OPENS)
    _, closed, tail = rest.partition(CLOSES)
    if not (opened and closed):
        raise SystemExit(f"{page} lacks {OPENS} and {CLOSES}, between which the tables go")
    page.write_text(f"{head}{OPENS}\n\n{tables}\n\n{CLOSES}{tail}")
    print(f"wrote {page}")
