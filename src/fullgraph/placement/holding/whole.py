"""The structure of the whole graph, gathered from all ranks and kept once per machine, in shared memory.

Legend: N nodes, n of them this rank's own, h halo rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.halo import halo_of
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Bundle, Key, Transport, gather_rows, share

Leaders = tuple[int, ...]
Patterned = Adjacency | Structure


def share_matrices(
    make: Callable[[Leaders], Mapping[str, Patterned] | None], transport: Transport, name: str
) -> dict[str, Patterned]:
    """Share the matrices that make(leaders) returns on this machine's first rank; on others it returns None.

    The transposes that products with a matrix, or attention over a bare pattern, need are shared, too.
    """

    def bundle(leaders: Leaders) -> Bundle | None:
        made = make(leaders)
        return None if made is None else pack(made)

    return unpack(share(bundle, transport, name))


class _Packer:
    """Gives tensors and structures numbers, each at its first use."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.structures: list[dict[str, Any]] = []
        self._tensors: dict[
            tuple[object, ...], int
        ] = {}  # keyed by address; `tensors` holds a reference, so no address is reused
        self._structures: dict[Structure, int] = {}

    def tensor(self, value: Tensor | None) -> int | None:
        if value is None:
            return None
        lies = value.data_ptr(), value.shape, value.dtype
        if lies not in self._tensors:
            self._tensors[lies] = len(self.tensors)
            self.tensors.append(value)
        return self._tensors[lies]

    def structure(self, value: Structure, with_perm: bool = False) -> int:
        if value not in self._structures:
            self._structures[value] = len(self.structures)
            arrays = {"indptr": self.tensor(value.indptr), "indices": self.tensor(value.indices)}
            self.structures.append({**arrays, "num_cols": value.num_cols, "perm": None})
            self.structures[self._structures[value]]["T"] = self.structure(value.T)
        number = self._structures[value]
        if with_perm:
            self.structures[number]["perm"] = self.tensor(value.perm)
        return number


def pack(values: Mapping[str, Patterned]) -> Bundle:
    """Matrices and their transposes as tensors with a description; tensors that several use are listed once."""
    packer = _Packer()
    facts: dict[str, dict[str, int | None]] = {}
    for name, value in values.items():
        if isinstance(value, Structure):
            facts[name] = {"structure": packer.structure(value, with_perm=True)}
        else:
            scales = {"row_scale": packer.tensor(value.row_scale), "col_scale": packer.tensor(value.col_scale)}
            weights = {"weight": packer.tensor(value.weight), "turned": packer.tensor(value.T.weight)}
            facts[name] = {"structure": packer.structure(value.structure), **scales, **weights}
    return Bundle([packer.structures, facts], packer.tensors)


def unpack(bundle: Bundle) -> dict[str, Patterned]:
    """The matrices that `pack` took apart."""

    def tensor(number: int | None) -> Tensor | None:
        return None if number is None else bundle.tensors[number]

    patterns, facts = bundle.text
    structures = [Structure(bundle.tensors[p["indptr"]], bundle.tensors[p["indices"]], p["num_cols"]) for p in patterns]
    for structure, pattern in zip(structures, patterns, strict=True):
        structure.paired(structures[pattern["T"]], tensor(pattern["perm"]))

    def one(fact: dict[str, Any]) -> Patterned:
        structure: Structure = structures[fact["structure"]]
        if "turned" not in fact:
            return structure
        parts = (tensor(fact[name]) for name in ("weight", "row_scale", "col_scale"))
        return Adjacency(structure, *parts).paired(tensor(fact["turned"]))

    return {name: one(fact) for name, fact in facts.items()}


def share_whole(
    make: Callable[[Matrices], Mapping[str, Patterned]], graph: RankGraph, number_n: Tensor, nodes: int,
    transport: Transport, aggregation: str, dtype: torch.dtype, name: str,
) -> dict[str, Patterned]:  # fmt: skip
    """The result of `make` for the square matrices of the whole graph, in memory that a machine's ranks share.

    number_n [n] is the row and column, 0..N-1, of each owned row. Only the first rank of a machine receives all arcs,
    and builds the result.
    """

    def of_all(leaders: Leaders) -> Mapping[str, Patterned] | None:
        arcs = _gather(graph, number_n, nodes, transport, f"setup/{name} arcs", leaders)
        return None if arcs is None else make(build(arcs, aggregation, _no_halo, dtype))

    return share_matrices(of_all, transport, f"setup/{name} structure")


def _gather(
    graph: RankGraph, number_n: Tensor, nodes: int, transport: Transport, name: str, leaders: Leaders
) -> Arcs | None:
    """All arcs in the new numbering, rows and each row's columns ascending; only on leaders."""

    def at_leaders(what: str, values: Tensor) -> Tensor:
        return gather_rows(values, transport, Key(f"{name} {what}", 0), lambda receiver, sender: receiver in leaders)

    number_n, arcs = number_n.to(torch.int32), graph.arcs
    number = torch.cat([number_n, halo_of(graph.rows.route, number_n, transport, f"{name} numbers")])
    row_N, degree_N = at_leaders("rows", number_n), at_leaders("degrees", arcs.indptr.diff())
    source = at_leaders("sources", number[arcs.indices.long()])
    weight = None if arcs.weight is None else at_leaders("weights", arcs.weight)
    if transport.rank not in leaders:
        return None
    indptr = np.concatenate([[0], np.cumsum(degree_N.numpy())])
    data = np.zeros(len(source), np.int8) if weight is None else weight.numpy()
    index = np.int32 if len(source) < 1 << 31 else np.int64
    pattern = sp.csr_array((data, source.numpy().astype(index, copy=False), indptr.astype(index)), shape=(nodes, nodes))
    if bool((row_N.diff() < 0).any()):
        pattern = pattern[torch.argsort(row_N).numpy()]
    pattern.sort_indices()  # so that a symmetric pattern is recognised
    return Arcs(
        torch.from_numpy(pattern.indptr.astype(np.int64)),
        torch.from_numpy(pattern.indices.astype(np.int32, copy=False)),
        None if weight is None else torch.from_numpy(pattern.data),
        0,
    )


def _no_halo(values: Tensor) -> Tensor:
    return values[:0]
