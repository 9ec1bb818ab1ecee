"""What a check found."""

from dataclasses import dataclass

OK, OPTION, BAD = "ok", "optional", "missing"


@dataclass(frozen=True)
class Finding:
    """One line. state: ok; optional (it works without); or missing (a run would fail, or be far slower)."""

    name: str
    state: str
    text: str
    fix: str = ""  # how to get it
