"""report.html."""

from pathlib import Path

PAGE = "report.html"


def write_report(folder: Path) -> None: ...
