"""Format figures for people; sizes have decimal units everywhere. Read the sizes that people give."""

import re


def size(nbytes: float) -> str:
    """1234567 -> '1.23 MB'."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def bytes_in(text: str) -> int | None:
    """'2GiB' -> 2147483648, '500 MB' -> 500000000; None: not a size."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(i?)b)?\s*", text, re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        return None
    power = " kmgtp".index((found[2] or " ").lower())
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def milliseconds(seconds: float) -> str:
    """Format the seconds of an epoch: '12.3 ms', or '4.56 s' from one second on."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def duration(seconds: float) -> str:
    """'0.4 s', '12 s', '3 min 05 s', '2 h 10 min'."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def score(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def count(number: int, thing: str) -> str:
    """'1 rank', '3 ranks'."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
