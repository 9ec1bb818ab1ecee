"""Random splits of the labelled nodes, with the requested shares, equal for equal seeds."""

import numpy as np
import pytest

from fullgraph.data import Graph
from fullgraph.data.splits import draw_masks, shares_of
from fullgraph.errors import InputError

N = 200
LABELS = {
    "classes": np.where(np.arange(N) % 10 == 0, -1, np.arange(N) % 4),
    "numbers": np.where(np.arange(N) % 5 == 0, np.nan, np.linspace(0, 1, N)),
    "sets": (np.arange(N)[:, None] % np.array([2, 3, 5]) == 0).astype(np.float32),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("split", ["random:60/20/20", "random:0.6/0.2/0.2", "random:50/25/25"])
def test_a_drawn_split_is_of_the_labelled_nodes(kind, split):
    y = LABELS[kind]
    graph = Graph(np.zeros((2, 1), int), np.ones((N, 1)), y)
    assert graph.lacks
    drawn = graph.with_split(split, seed=3)
    assert drawn.labelled
    three = [drawn.train_mask[:, 0], drawn.val_mask[:, 0], drawn.test_mask[:, 0]]
    known = np.ones(N, bool) if kind == "sets" else (y >= 0 if kind == "classes" else np.isfinite(y))
    assert np.array_equal(np.sum(three, axis=0), known)
    count, shares = known.sum(), [float(part) for part in split.removeprefix("random:").split("/")]
    wanted = np.array(shares) / sum(shares) * count
    assert np.abs([mask.sum() for mask in three] - wanted).max() <= 1
    again, other = graph.with_split(split, seed=3), graph.with_split(split, seed=4)
    assert np.array_equal(again.train_mask, drawn.train_mask)
    assert not np.array_equal(other.train_mask, drawn.train_mask)


OTHERS = ("", "60/20", "60/20/30", "a/b/c", "100/0/0", "nan/1/1", "-20/60/60", "inf/1/1")


@pytest.mark.parametrize("split", [*(f"random:{shares}" for shares in OTHERS), "60/20/20"])
def test_other_shares_are_refused(split):
    with pytest.raises(InputError, match="three shares that make 100"):
        shares_of(split)


def test_too_few_labelled_nodes_are_refused():
    with pytest.raises(InputError, match="2 nodes cannot be split three ways"):
        draw_masks(np.array([0, 1, -1, -1]), "random:60/20/20", 0)
    with pytest.raises(InputError, match="has no labels, and --split random:60/20/20 draws among labelled nodes"):
        Graph(np.zeros((2, 1), int), np.ones((5, 1))).with_split("random:60/20/20", 0)
