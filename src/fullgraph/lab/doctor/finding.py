"""The result of a check."""

from dataclasses import dataclass

OK, OPTION, BAD = "ok", "optional", "missing"


@dataclass(frozen=True)
class Finding:
    """One line. state: ok; optional (training works without it); or missing (a run would fail, or be far slower)."""

    name: str
    state: str
    text: str
    fix: str = ""  # how to get it
