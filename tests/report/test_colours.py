"""Colours of charts: told apart with and without red-green vision, and visible on the page, in light and in dark."""

from itertools import combinations

import numpy as np
import pytest

from fullgraph.lab.html.charts import DASHES
from fullgraph.lab.html.document import DARK, LIGHT

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
SEEN = {
    "all": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
LEAST = 12.0  # difference in CIE L*a*b*; 2.3 is just noticeable side by side
CONTRAST = 3.0  # WCAG 2 for graphics


def linear(colour):
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_each_pair_is_told_apart(palette, seen):
    found = {
        (one, other): float(np.linalg.norm(lab(SEEN[seen] @ linear(one)) - lab(SEEN[seen] @ linear(other))))
        for one, other in combinations(palette, 2)
    }
    assert min(found.values()) > LEAST, min(found, key=found.get)


@pytest.mark.parametrize(("palette", "page"), [(LIGHT, "#f6f7f9"), (DARK, "#1d2127")], ids=["light", "dark"])
def test_each_colour_stands_out_from_the_page(palette, page):
    bright = [float(TO_XYZ[1] @ linear(colour)) for colour in (*palette, page)]
    ratios = [(max(own, bright[-1]) + 0.05) / (min(own, bright[-1]) + 0.05) for own in bright[:-1]]
    assert min(ratios) >= CONTRAST


def test_as_many_runs_as_a_page_takes_differ_in_colour_or_in_dashes():
    from fullgraph.lab.html.many import MOST_RUNS

    assert len({(place % len(LIGHT), place % len(DASHES)) for place in range(MOST_RUNS)}) == MOST_RUNS
