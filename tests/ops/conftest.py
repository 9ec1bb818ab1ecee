"""All implementations of every operation, and graphs that cover the odd shapes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fullgraph.ops import Structure

MakeStructure = Callable[..., Structure]
Dense = Callable[..., Tensor]


@pytest.fixture(params=["numba", "torch", "triton"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "triton":
        request.getfixturevalue("interpreted")
    monkeypatch.setenv("FULLGRAPH_KERNELS", request.param)
    return str(request.param)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["f32", "f64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    result: torch.dtype = request.param
    return result


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def two_threads(one_thread: None) -> None:
    """For the tests of the chunks."""
    torch.set_num_threads(2)


@pytest.fixture
def make_structure() -> MakeStructure:
    def make(rows: int, cols: int, arcs: int, *, seed: int = 0, ascending: bool = True) -> Structure:
        """A random pattern with duplicates; about half of the rows stay empty."""
        rng = np.random.default_rng(seed)
        arcs = arcs if rows and cols else 0
        used = rng.choice(rows, max(1, rows // 2), replace=False) if rows else np.empty(0, np.int64)
        target = np.sort(rng.choice(used, arcs)) if arcs else np.empty(0, np.int64)
        source = rng.integers(0, max(cols, 1), arcs)
        if ascending:
            source = source[np.lexsort((source, target))]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=rows))])
        return Structure(torch.from_numpy(indptr), torch.from_numpy(source.astype(np.int32)), cols)

    return make


@pytest.fixture
def dense() -> Dense:
    def matrix(structure: Structure, weight: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """The matrix A with A[i, j] = the sum of the weights of the arcs j -> i."""
        values = torch.ones(structure.num_arcs, dtype=dtype) if weight is None else weight
        rows = torch.repeat_interleave(torch.arange(structure.num_rows), structure.indptr.diff())
        out = torch.zeros(structure.num_rows, structure.num_cols, dtype=values.dtype)
        return out.index_put_((rows, structure.indices.long()), values, accumulate=True)

    return matrix
