"""Weights and buffers of a user's model with a row per node: each rank holds the rows of its own nodes."""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullgraph.errors import InputError
from fullgraph.own_model.rows.spaces import Rows, Space, mark
from fullgraph.train.spread import SpreadRows
from fullgraph.transport import Transport

HOLDERS = ("torch.nn.modules.container", "torch_geometric.nn.models.linkx")  # library modules that hold users' weights
OTHERS = ("torch.", "torch_geometric.")
Place = tuple[dict[str, Any], str]  # a module's weights or buffers, and the name of one of them


class Tables(SpreadRows):
    """The tables of one user's model, reduced to the rows `ids` of `total` nodes."""

    def __init__(
        self, module: nn.Module, names: Collection[str], ids: Tensor, total: int,
        transport: Transport | None = None, key: str = "",
    ) -> None:  # fmt: skip
        super().__init__(names, ids, total, transport, key)
        self._places = {name: _place(module, name) for name in names}
        made: dict[int, tuple[Tensor, Tensor]] = {}  # a weight may be at several places
        for holder, name in self._places.values():
            whole = holder[name]
            if id(whole) not in made:
                made[id(whole)] = whole, _cut(whole, ids)
            holder[name] = made[id(whole)][1]

    def held(self) -> list[Tensor]:
        return [holder[key] for holder, key in self._places.values()]

    def mark(self, nodes: Space) -> None:
        """Mark the tables' rows as those of the owned nodes, for a forward pass."""
        for name, (holder, key) in self._places.items():
            if len(holder[key]) != nodes.size:
                raise InputError(f"{name} has a row per node, and the model gave it another size; keep its size")
            mark(holder[key], Rows(nodes, 0))


def _cut(whole: Tensor, ids: Tensor) -> Tensor:
    rows = whole.detach()[ids.to(whole.device)]
    if not isinstance(whole, nn.Parameter):
        return rows
    weight = nn.Parameter(rows, requires_grad=whole.requires_grad)
    weight.holds_own_rows = True  # type: ignore[attr-defined]
    return weight


def tables_in(module: nn.Module, total: int, width: int) -> list[str]:
    """The names of weights and buffers with a row for each of `total` nodes.

    width: of the input; if it equals the number of nodes, a weight with that many rows may be a map of features.
    """
    found = []
    for name, part in module.named_modules():
        by_size = total != width and not _is_of_others(part)
        if by_size or (isinstance(part, nn.Embedding) and part.num_embeddings == total):
            values = {**part._parameters, **part._buffers}
            found += [f"{name}.{key}".lstrip(".") for key, x in values.items() if x is not None and _has(x, total)]
    return found


def _has(x: Tensor, total: int) -> bool:
    return not is_lazy(x) and x.shape[:1] == (total,)


def _place(module: nn.Module, name: str) -> Place:
    home, _, key = name.rpartition(".")
    part = module.get_submodule(home)
    return (part._parameters if key in part._parameters else part._buffers), key


def _is_of_others(part: nn.Module) -> bool:
    """Whether a part is a layer of torch or PyG: such layers have no rows of nodes, whatever their widths."""
    home = type(part).__module__
    return home.startswith(OTHERS) and home not in HOLDERS
