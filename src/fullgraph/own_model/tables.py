"""Weights and buffers of a user's model with a row per node: each rank holds the rows of its own nodes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullgraph.errors import InputError
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.rows.spaces import Rows, mark
from fullgraph.own_model.typed.views import TypedView
from fullgraph.train.spread import Held, SpreadRows
from fullgraph.transport import Transport

HOLDERS = (  # library modules that hold users' weights
    "torch.nn.modules.container", "torch_geometric.nn.models.linkx", "torch.fx.graph_module",
)  # fmt: skip
OTHERS = ("torch.", "torch_geometric.")
Place = tuple[dict[str, Any], str]  # a module's weights or buffers, and the name of one of them


class Tables(SpreadRows):
    """The tables of one user's model, reduced to the rows that this rank owns."""

    def __init__(
        self, module: nn.Module, held: Mapping[str, Held], transport: Transport | None = None, key: str = "",
        kinds: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """kinds: the node types of tables of a typed graph."""
        super().__init__(held, transport, key)
        self.kinds = kinds or {}
        self._places = {name: _place(module, name) for name in held}
        made: dict[int, tuple[Tensor, Tensor]] = {}  # a weight may be at several places
        for table, (holder, name) in self._places.items():
            whole = holder[name]
            if id(whole) not in made:
                made[id(whole)] = whole, _cut(whole, held[table].ids)
            holder[name] = made[id(whole)][1]

    @classmethod
    def found(cls, module: nn.Module, view: PygView, transport: Transport, key: str) -> "Tables":
        """The tables of a module, cut to the rows of a view."""
        kinds = tables_in(module, view)
        parts = {name: part_of(view, kind) for name, kind in kinds.items()}
        held = {name: Held(part.numbers, part.num_nodes) for name, part in parts.items()}
        return cls(module, held, transport, key, kinds)

    def held(self) -> list[Tensor]:
        return [holder[key] for holder, key in self._places.values()]

    def mark(self, view: PygView) -> None:
        """Mark the tables' rows as those of the owned nodes, for a forward pass."""
        for name, (holder, key) in self._places.items():
            nodes = part_of(view, self.kinds.get(name, "")).nodes
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


def part_of(view: PygView, kind: str) -> PygView:
    """The rows of a node type; of a graph without types, all rows."""
    return view.parts[kind] if isinstance(view, TypedView) else view


def tables_in(module: nn.Module, view: PygView) -> dict[str, str]:
    """The names of weights and buffers with a row per node, and the node types of their rows."""
    if not isinstance(view, TypedView):
        return dict.fromkeys(_tables_in(module, view.num_nodes, view.features.shape[1]), "")
    found: dict[str, list[str]] = {}
    for kind, part in view.parts.items():
        for name in _tables_in(module, part.num_nodes, part.features.shape[1]):
            found.setdefault(name, []).append(kind)
    return {name: _one_of(name, kinds, view) for name, kinds in found.items()}


def _one_of(name: str, kinds: list[str], view: TypedView) -> str:
    """The type of a table's rows, if several types have as many nodes: the one that its name contains."""
    named = [kind for kind in kinds if f".{kind}." in f".{name}." or kind in name.rpartition(".")[0].split("_")]
    bare = [kind for kind in kinds if not view.parts[kind].features.shape[1]]
    chosen = next((some for some in (kinds, named, bare) if len(some) == 1), None)
    if chosen is None:
        raise InputError(
            f"{name} has as many rows as there are nodes of {' and of '.join(kinds)}; keep it in an nn.ModuleDict or "
            "nn.ParameterDict under the name of its type"
        )
    return chosen[0]


def _tables_in(module: nn.Module, total: int, width: int) -> list[str]:
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


def has_table(module: nn.Module, total: int) -> bool:
    """Whether a module has a weight with a row for each of `total` nodes."""
    return bool(_tables_in(module, total, 0))


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
