"""`inspect` says which shares are uneven; it advises nothing, because it measures no time."""

import re
from pathlib import Path

from fullgraph.report.inspection import remarks_on

ABOUT = {"nodes": 1000}
EVEN = {"nodes": [500, 500], "edges": [900, 900], "halo": [10, 10], "train": [5, 5], "halo_rows": 20, "types": []}
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "halo.svg"


def test_even_parts_need_no_word():
    assert remarks_on(ABOUT, EVEN) == []


def test_uneven_shares_are_one_line_without_opposite_fixes():
    (text,) = remarks_on(ABOUT, {**EVEN, "nodes": [800, 200], "edges": [300, 1500]})
    assert text.startswith("rank 1 has 1.7x the mean's edges, rank 0 has 1.6x the mean's nodes: ")
    assert "measured by a run" in text
    assert "-p " not in text


def test_the_terminal_and_the_page_call_the_same_uneven():
    from fullgraph.report import inspection, profile

    assert inspection.UNEVEN == profile.LAG


def test_the_halos_arrows_go_from_owner_to_copy():
    """Circles with a dashed edge are copies; an arrow begins at the full circle of the same name."""
    text = PICTURE.read_text()
    circles = re.findall(
        r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*dasharray="([^"]*)"[^>]*/>\s*<text[^>]*>(\w)</text>', text
    )
    own = {name: (float(x), float(y)) for x, y, dashes, name in circles if not dashes}
    copies = {name: (float(x), float(y)) for x, y, dashes, name in circles if dashes}
    arrows = re.findall(r'd="M([\d.]+) ([\d.]+)C[\d.]+ [-\d.]+ [\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"[^>]*marker-end', text)

    def nearest(place, among):
        return min(among, key=lambda name: abs(among[name][0] - place[0]) + abs(among[name][1] - place[1]))

    ends = [((float(a), float(b)), (float(c), float(d))) for a, b, c, d in arrows]
    found = {(nearest(start, own), nearest(end, copies)) for start, end in ends}
    assert found == {(name, name) for name in copies}
    assert len(copies) == 4
