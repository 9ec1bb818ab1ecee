"""Every wrong input is refused in one line that names the fix."""

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.errors import InputError


def good():
    role = np.arange(9) % 3
    return {
        "edge_index": np.array([[0, 1, 2, 8], [1, 2, 3, 0]]),
        "x": np.ones((9, 2), dtype=np.float32),
        "y": np.arange(9) % 2,
        "masks": {"train": role == 0, "val": role == 1, "test": role == 2},
        "edge_weight": np.ones(4),
    }


def changed(array, where, value, dtype=None):
    out = np.array(array, dtype=dtype)
    out[where] = value
    return out


def mask(name, value):
    def change(parts):
        parts["masks"][name] = value(parts["masks"]) if callable(value) else value

    return change


def put(key, value):
    def change(parts):
        parts[key] = value(parts[key]) if callable(value) else value

    return change


def sparse(parts_of):
    def change(parts):
        csr = sp.csr_array(np.eye(9, 2, dtype=np.float32))
        parts_of(csr)
        parts["x"] = csr

    return change


CASES = {
    "negative id": (put("edge_index", lambda e: changed(e, (0, 1), -2)), "negative node id -2", "remove"),
    "id out of range": (put("edge_index", lambda e: changed(e, (1, 0), 9)), "node id 9", "fix the ids"),
    "float ids": (put("edge_index", lambda e: e * 1.0), "float64", "cast"),
    "edge shape": (put("edge_index", lambda e: e.T), "(4, 2)", "[2, edges]"),
    "nan": (put("x", lambda x: changed(x, (4, 1), np.nan)), "node 4, column 1", "nan_to_num"),
    "inf": (put("x", lambda x: changed(x, (0, 0), -np.inf)), "NaN or infinity", "nan_to_num"),
    "x ragged": (put("x", [[1.0], [1.0, 2.0]]), "different lengths", "rectangular"),
    "x shape": (put("x", lambda x: x[:, 0]), "(9,)", "[nodes, features]"),
    "no features": (put("x", lambda x: x[:, :0]), "(9, 0)", "at least one"),
    "x text": (put("x", lambda x: x.astype(str)), "<U", "real numbers"),
    "sparse nan": (sparse(lambda c: c.data.__setitem__(0, np.nan)), "NaN or infinity", "nan_to_num"),
    "sparse column": (sparse(lambda c: c.indices.__setitem__(0, 7)), "do not fit together", "rebuild"),
    "y length": (put("y", lambda y: y[1:]), "(8,)", "[nodes]"),
    "y text": (put("y", lambda y: y.astype(str)), "<U", "integers"),
    "y nan in a mask": (put("y", lambda y: changed(y * 1.0, 4, np.nan)), "NaN or infinite (node 4)", "take them out"),
    "y infinite in a mask": (
        put("y", lambda y: changed(np.stack([y, y], 1) * 1.0, (4, 1), np.inf)),
        "NaN or infinite (node 4)",
        "finite",
    ),
    "y below -1": (put("y", lambda y: changed(y, 0, -2)), "-2", "-1 means unlabelled"),
    "y too large": (put("y", lambda y: changed(y, 0, 9)), "label 9", "without gaps"),
    "y unlabelled in mask": (put("y", lambda y: changed(y, 4, -1)), "node 4 has y = -1", "take them out"),
    "multi-label values": (put("y", lambda y: np.stack([y, y + 1], axis=1)), "only 0 and 1", "give zeros and ones"),
    "multi-label nan": (put("y", lambda y: np.full((9, 2), np.nan)), "NaN or infinite", "finite numbers"),
    "multi-label empty": (put("y", lambda y: np.zeros((9, 0))), "no class columns", "give [nodes, classes]"),
    "weight length": (put("edge_weight", lambda w: w[1:]), "(3,) for 4 edges", "one number per edge"),
    "weight nan": (put("edge_weight", lambda w: changed(w, 2, np.nan)), "edge 2", "finite"),
    "weight inf": (put("edge_weight", lambda w: changed(w, 3, np.inf)), "edge 3", "finite"),
    "weight text": (put("edge_weight", lambda w: w.astype(str)), "<U", "real numbers"),
    "mask length": (mask("val", np.ones(4, dtype=bool)), "val_mask has shape (4,)", "[nodes]"),
    "mask type, another one missing": (
        lambda parts: parts.update(masks={**parts["masks"], "val": None, "test": np.ones(9)}),
        "test_mask has the type float64",
        "booleans",
    ),
    "mask type": (mask("test", np.zeros(3)), "test_mask has the type float64", "booleans"),
    "mask list outside": (mask("test", np.array([7, 9])), "test_mask lists the node id 9", "fix the ids"),
    "mask list below": (mask("test", np.array([-1, 7])), "test_mask lists the node id -1", "fix the ids"),
    "mask list twice": (mask("test", np.array([7, 7])), "test_mask lists a node id more than once", "each node once"),
    "mask lists": (mask("test", np.array([[7, 8]])), "test_mask is int64 (1, 2)", "a list of node ids"),
    "y mixed": (put("y", lambda y: np.array(["a", 1, *y[2:]], dtype=object)), "mixes texts and other", "class numbers"),
    "class names": (put("class_names", np.array(["a"])), "class_names has 1 texts", "one per class"),
    "class names twice": (put("class_names", np.array(["a", "a"])), "has a text twice", "a different text"),
    "mask missing": (lambda parts: parts["masks"].pop("val"), "lacks val", "train, val and test"),
    "masks pair": (put("masks", lambda m: (m["train"], m["val"])), "three in a tuple", "give one of the two"),
    "mask empty": (mask("train", np.zeros(9, dtype=bool)), "train_mask is empty", "at least one node"),
    "mask overlap": (
        mask("test", lambda m: m["test"] | m["train"]),
        "train_mask and test_mask overlap (node 0)",
        "one",
    ),
    "mask splits": (
        lambda p: p["masks"].update(
            train=np.stack([p["masks"]["train"]] * 2, axis=1), val=np.stack([p["masks"]["val"]] * 3, axis=1)
        ),
        "2 splits where another mask has 3",
        "the same",
    ),
    "mask empty in a split": (
        lambda p: p["masks"].update(train=np.stack([p["masks"]["train"], np.zeros(9, dtype=bool)], axis=1)),
        "train_mask is empty in split 1",
        "at least one node",
    ),
}


def test_the_unchanged_input_is_accepted():
    assert Graph(**good()).num_arcs == 4


@pytest.mark.parametrize(("change", "what", "fix"), CASES.values(), ids=CASES.keys())
def test_wrong_input_is_one_line_that_names_the_fix(change, what, fix):
    parts = good()
    change(parts)
    with pytest.raises(InputError) as caught:
        Graph(**parts)
    text = str(caught.value)
    assert "\n" not in text
    assert what in text
    assert fix in text


CSR_CASES = {
    "too short": (lambda p, i: (p[:-1], i), "entries for the 3 nodes"),
    "not from 0": (lambda p, i: (p + 1, i), "rise from 0"),
    "not to E": (lambda p, i: (p, i[:-1]), "rise from 0 to the 3"),
    "falling": (lambda p, i: (np.array([0, 3, 2, 4]), i), "rise from 0"),
    "out of range": (lambda p, i: (p, i + 2), "node id 4"),
    "negative": (lambda p, i: (p, i - 1), "negative node id -1"),
    "float": (lambda p, i: (p * 1.0, i), "integer arrays"),
}


@pytest.mark.parametrize(("change", "what"), CSR_CASES.values(), ids=CSR_CASES.keys())
def test_wrong_csr_is_one_line(change, what):
    indptr, indices = change(np.array([0, 1, 2, 4]), np.array([0, 1, 0, 2]))
    masks = tuple(np.eye(3, dtype=bool))
    with pytest.raises(InputError) as caught:
        Graph.from_csr(indptr, indices, np.ones((3, 1)), np.arange(3), masks)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_entry_is_found_in_any_block_of_a_tall_matrix():
    num_nodes = 3_000_000  # two blocks of four million entries
    x = np.zeros((num_nodes, 2), dtype=np.float16)
    x[num_nodes - 5, 1] = np.inf
    role = np.arange(num_nodes) % 3
    with pytest.raises(InputError, match=f"node {num_nodes - 5}, column 1"):
        Graph(np.zeros((2, 0), dtype=int), x, role, (role == 0, role == 1, role == 2))
