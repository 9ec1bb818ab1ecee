"""python -m faults [NAME ...] [--trials N]: run campaigns, continue where the last call stopped, print a table."""

import argparse
import importlib
import sys
from pathlib import Path

from faults.trials import Campaign, carry_out, table

NAMES = (
    "ports",
    "kills",
    "signals",
    "stops",
    "stalls",
    "threads",
    "crashes",
    "disks",
    "restarts",
    "links",
    "hosts",
    "slurm",
    "soak",
    "inputs",
    "user-files",
    "belongings",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="campaigns; default: all")
    parser.add_argument("--trials", type=int, help="trials per campaign; default: the campaign's number")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--jobs", type=int, help="trials at the same time; default: the campaign's number")
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"), help="results and scratch files")
    options = parser.parse_args()
    outcomes, promises = {}, {}
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        campaign: Campaign = importlib.import_module(f"faults.{name.replace('-', '_')}").CAMPAIGN
        campaign = campaign._replace(jobs=options.jobs or campaign.jobs)
        numbers = range(options.first, options.first + (options.trials or campaign.trials))
        shared = (options.folder / "shared").resolve()
        shared.mkdir(exist_ok=True)
        outcomes[name] = carry_out(name, campaign, numbers, options.folder / "results.jsonl", shared)
        promises[name] = campaign.promise
    print(table(outcomes, promises))
    sys.exit(any(not outcome.good for found in outcomes.values() for outcome in found))


if __name__ == "__main__":
    main()
