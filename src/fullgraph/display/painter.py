"""The painter draws for another process, which may call a library that blocks all of its own threads.

    python -I -S painter.py live|ascii|lines

Each line of its input is JSON with the whole state, as `display.py` defines it. It ends when its input ends.

live    A region at the bottom of the terminal, redrawn at most five times per second: a table, then a bar. The cursor
        stays at the region's beginning, so that other output pushes the region down.
lines   A line after ten seconds without a line.

It imports only the standard library, and starts in a few hundredths of a second.
"""

import json
import os
import select
import shutil
import signal
import sys
import time
from typing import Any

DRAW_S = 0.2
QUIET_S = 9.5  # print a line at least every ten seconds
WIDTH = 24  # characters of a bar
ASKED: list[bool] = []  # not empty after Ctrl-C
SIGNS = {"live": ("━", "─", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), "ascii": ("#", "-", "|/-\\")}


def elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def bar(state: dict[str, Any], signs: tuple[str, str, str], now: float) -> str:
    """Draw the progress of a phase; if the total is unknown, only its duration."""
    full, empty, turning = signs
    spent = now - state["since"]
    if state["total"]:
        share = min(1.0, state["done"] / state["total"])
        filled = int(share * WIDTH)
        drawn = f"{full * filled}{empty * (WIDTH - filled)} {share:4.0%}"
    else:
        drawn = turning[int(spent / DRAW_S) % len(turning)]
    asked = "  stopping soon" if ASKED else ""
    return f" {drawn}  {state['doing']}  {elapsed(spent)}{asked}"


def table(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines, every column as wide as its widest cell."""
    columns = max(map(len, rows), default=0)
    padded = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in padded) for column in range(columns)]
    return [" " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in padded]


class Live:
    """The region at the bottom of a terminal."""

    def __init__(self, signs: tuple[str, str, str]) -> None:
        self.signs = signs
        self.state: dict[str, Any] = {"doing": "", "rows": []}

    def update(self, state: dict[str, Any]) -> None:
        self.state = state
        if state["lines"]:
            write("\r\033[J" + "".join(f"{line}\n" for line in state["lines"]))

    def draw(self, now: float) -> None:
        lines = [*table(self.state["rows"]), *([bar(self.state, self.signs, now)] if self.state["doing"] else [])]
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in lines][: max(1, size.lines - 1)]
        up = f"\033[{len(lines) - 1}A" if len(lines) > 1 else ""
        write("\r\033[J" + "\n".join(lines) + (f"{up}\r" if lines else ""))

    def close(self) -> None:
        """Keep the table and remove the bar."""
        write("\r\033[J" + "".join(f"{line}\n" for line in table(self.state["rows"])))


class Lines:
    """Prints a line if the working process has been quiet for a while."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"doing": ""}
        self.said = 0.0

    def update(self, state: dict[str, Any]) -> None:
        self.state = state
        self.said = max(self.said, state["said"])

    def draw(self, now: float) -> None:
        if self.state["doing"] and now - self.said >= QUIET_S:
            share = f" {self.state['done'] / self.state['total']:.0%}," if self.state["total"] else ""
            write(f"{self.state['doing']}:{share} {elapsed(now - self.state['since'])}\n")
            self.said = now

    def close(self) -> None:
        pass


def write(text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: ASKED.append(True))  # a terminal sends it to both processes
    mode = sys.argv[1]
    shows = Lines() if mode == "lines" else Live(SIGNS[mode])
    kept = b""
    drawn = 0.0
    try:
        while True:
            ready, _, _ = select.select([0], [], [], max(0.0, drawn + DRAW_S - time.monotonic()))
            if ready:
                data = os.read(0, 1 << 16)
                if not data:
                    break
                *whole, kept = (kept + data).split(b"\n")
                for line in whole:
                    shows.update(json.loads(line))
            if time.monotonic() >= drawn + DRAW_S:
                shows.draw(time.monotonic())
                drawn = time.monotonic()
        shows.close()
    except OSError:  # the output is closed
        pass


if __name__ == "__main__":
    main()
