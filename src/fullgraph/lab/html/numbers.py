"""Format numbers for people, and place the labels of an axis."""

import math


def figure(value: float) -> str:
    """A number with four significant digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e5 or abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} s"
    return f"{value * 1e6:.3g} \N{MICRO SIGN}s" if value else "0 s"


def count(value: float) -> str:
    return f"{value:,.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.2g} %"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from low to high; if there are few, also 2 and 5 times these."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 4 else (1, 2, 5)
    return [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]


def thinned(items: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` items, evenly spread, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
