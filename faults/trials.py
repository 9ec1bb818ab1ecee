"""A campaign: many trials of one promise; the number of a trial determines everything random in it."""

import json
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

BROKEN = "broken.txt"  # beside the results: the texts of all broken trials
Trial = Callable[[int, Path], str]  # (number, a folder that all trials share) -> the outcome in a few words


class Campaign(NamedTuple):
    """A trial raises AssertionError if the promise is broken; otherwise it returns a label, which the table counts."""

    trial: Trial
    trials: int  # the number that `make campaign` runs
    promise: str
    jobs: int = 2  # at the same time


@dataclass(frozen=True)
class Outcome:
    campaign: str
    number: int
    good: bool
    text: str
    seconds: float


def run_one(name: str, campaign: Campaign, number: int, shared: Path) -> Outcome:
    start = time.monotonic()
    # Commands of a trial use the default signal actions, even if this process runs in the background or under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        good, text = True, campaign.trial(number, shared)
    except AssertionError as error:
        good, text = False, f"broken: {error}"
    except Exception:
        good, text = False, traceback.format_exc()
    return Outcome(name, number, good, text[-4000:], time.monotonic() - start)


def carry_out(name: str, campaign: Campaign, numbers: Iterable[int], results: Path, shared: Path) -> list[Outcome]:
    """Run the trials that are not in the results file yet; return all outcomes in it.

    One file beside it, broken.txt, has the texts of broken trials.
    """
    known = {outcome.number: outcome for outcome in read(results) if outcome.campaign == name}
    waiting = [number for number in numbers if number not in known]
    results.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(campaign.jobs, mp_context=get_context("spawn")) as pool, results.open("a") as file:
        futures = [pool.submit(run_one, name, campaign, number, shared) for number in waiting]
        for done, future in enumerate(as_completed(futures), 1):
            outcome = future.result()
            known[outcome.number] = outcome
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            if not outcome.good:
                with results.with_name(BROKEN).open("a") as broken:
                    broken.write(f"=== {name} {outcome.number}\n{outcome.text.rstrip()}\n\n")
            if not outcome.good or done % 10 == 0 or done == len(waiting):
                print(f"{name} {done}/{len(waiting)}: #{outcome.number} {outcome.text[:300]}", flush=True)
    return [known[number] for number in numbers if number in known]


def read(results: Path) -> list[Outcome]:
    """Return outcomes of earlier calls; an incomplete last line is left out."""
    lines = results.read_text().splitlines() if results.exists() else []
    outcomes = []
    for line in lines:
        try:
            outcomes.append(Outcome(**json.loads(line)))
        except ValueError:
            continue
    return outcomes


def tally(labels: Iterable[str]) -> Counter[str]:
    """Count labels; a label such as "70 refused, 30 right", of a trial with many cases, counts with its numbers."""
    counts: Counter[str] = Counter()
    for label in labels:
        cases = [re.fullmatch(r"(\d+) (\D+)", part) for part in label.split(", ")]
        if all(cases):
            counts.update({case[2]: int(case[1]) for case in cases if case})
        else:
            counts[label] += 1
    return counts


def table(outcomes: dict[str, list[Outcome]], promises: dict[str, str]) -> str:
    """Return one row per campaign, as Markdown."""
    rows = ["| campaign | promise | trials | broken | how they ended |", "|---|---|---|---|---|"]
    for name, found in outcomes.items():
        labels = tally(outcome.text for outcome in found if outcome.good).most_common(6)
        told = ", ".join(f"{count:,} {label}" for label, count in labels)
        broken = sum(not outcome.good for outcome in found)
        rows.append(f"| {name} | {promises[name]} | {len(found):,} | {broken} | {told} |")
    return "\n".join(rows)
