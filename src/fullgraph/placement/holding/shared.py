"""Matrices that the ranks of one machine hold together, with their transposes."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.transport import Bundle, Transport, share

Leaders = tuple[int, ...]
Patterned = Adjacency | Structure


def share_matrices(
    make: Callable[[Leaders], Mapping[str, Patterned] | None], transport: Transport, name: str
) -> dict[str, Patterned]:
    """What make(leaders) returns on the first rank of this machine (on others None), held once by all of them.

    Of a matrix its product with either side needs, of a bare pattern attention does.
    """

    def bundle(leaders: Leaders) -> Bundle | None:
        made = make(leaders)
        return None if made is None else _pack(made)

    return _unpack(share(bundle, transport, name))


class _Packer:
    """Numbers tensors and structures as they first come."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.structures: list[dict[str, Any]] = []
        self._tensors: dict[tuple[object, ...], int] = {}  # by where they lie, which their list above keeps theirs
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


def _pack(values: Mapping[str, Patterned]) -> Bundle:
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


def _unpack(bundle: Bundle) -> dict[str, Patterned]:
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
