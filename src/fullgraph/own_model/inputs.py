"""How a model's forward takes the graph: (x, edge_index), a PyG `Data`, and fields of the graph by name."""

import inspect
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

from fullgraph.own_code import unfit
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.typed.forms import LEARNED, as_hetero, learned_types
from fullgraph.own_model.typed.views import TypedView

KNOWN = ("edge_weight", "edge_attr", "node_id", "y", "train_mask", "val_mask", "test_mask")
ROWS = ("x", "feat", "feats", "features", "h", "inp", "inputs", "input")  # names of an argument for the features
ARCS = ("edge_index", "adj_t", "adj", "edges", "edge_index_dict", "adj_t_dict")
DATA = ("data", "graph", "batch", "g")
ABSENT = ("edge_weight", "edge_attr", "batch")  # attributes of a Data; None if the graph lacks them
Positional = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY


@dataclass(frozen=True)
class Takes:
    """The arguments of a forward. `x` and `arcs` are argument names; None: there is no such argument."""

    data: bool  # the first argument is a Data
    x: str | None
    arcs: str | None
    first: bool  # x and edge_index are the first two arguments, in this order
    names: tuple[str, ...]  # all other arguments
    needed: tuple[str, ...]  # other arguments without a default

    @classmethod
    def of(cls, module: nn.Module, fields: Collection[str] = ()) -> "Takes":
        """Read the arguments of the module's forward; `fields` are names of the graph's fields."""
        found = list(inspect.signature(module.forward).parameters.values())
        positional = [one.name for one in found if one.kind in Positional]
        gathers = any(one.kind is one.VAR_POSITIONAL for one in found)
        if positional and not gathers and _is_data(module, found[0], positional):
            data, x, arcs, first = True, None, None, False
        else:
            data = False
            others = [name for name in positional if name not in (*KNOWN, *fields)]
            x = next((name for name in others if name in ("x", "x_dict")), None)
            x = x or next((name for name in others[:1] if name not in ARCS), None)
            others = [name for name in others if name != x]
            arcs = next((name for name in ARCS if name in others), next(iter(others), None))
            first = gathers or positional[:2] == [x, arcs]
        taken = {positional[0]} if data else {x, arcs}
        rest = [one for one in found if one.kind in (*Positional, one.KEYWORD_ONLY) and one.name not in taken]
        needed = tuple(one.name for one in rest if one.default is one.empty)
        return cls(data, x, arcs, first, _usable(module, [one.name for one in rest]), needed)

    def bound(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """(x, edge_index, other arguments by name) of a call, matched to the forward's arguments."""
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        x, arcs = (given.pop(name, None) if name else None for name in (self.x, self.arcs))
        return x, arcs, given

    def call(self, module: nn.Module, x: Any, arcs: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call the module; learned rows are features of their types."""
        if isinstance(x, Mapping):
            x = {**x, **{kind: module._parameters[f"{LEARNED}{kind}"] for kind in learned_types(module)}}
        if self.data:
            own = {name: named[name] for name in self.names if name in named}
            by_type = isinstance(arcs, Mapping)
            data = as_hetero(x, arcs, named) if by_type else as_data({**named, "x": x, "edge_index": arcs})
            return module(data, *args, **own)
        if self.first:
            return module(x, arcs, *args, **named)
        both = {name: value for name, value in ((self.x, x), (self.arcs, arcs)) if name is not None}
        return module(*args, **both, **named)

    def of_graph(self, view: PygView, module: nn.Module) -> dict[str, Any]:
        """The graph's values for the arguments of the module's forward."""
        has = graph_fields(view)
        if self.data:
            return {name: value for name, value in has.items() if value is not None}
        found = {name: has[name] for name in self.names if has.get(name) is not None}
        if "batch" in self.needed and "batch" not in found:
            found["batch"] = view.ids.new_zeros(view.num_owned)
        missing = [name for name in self.needed if name not in found and not name.startswith("num_nodes")]
        if missing:
            there = ", ".join(name for name, value in has.items() if value is not None)
            raise unfit(
                module.forward,
                f"takes {', '.join(missing)}, which the graph does not have (it has {there}); put an array "
                "with a row per node or per edge under that name into the graph, or give the argument a default",
                f"the forward of {type(module).__name__}",
            )
        return found


def graph_fields(view: PygView) -> dict[str, Any]:
    """This rank's rows of the graph's fields beside x and edge_index."""
    if isinstance(view, TypedView):
        return view.named_inputs()
    rows, arcs = view.graph.rows, view.graph.arcs
    masks = {f"{split}_mask": mask for split, mask in rows.masks.items()}
    known = {"edge_weight": arcs.weight, "edge_attr": arcs.attr, "node_id": view.ids, "y": rows.y, **masks}
    return {**known, **rows.fields, **arcs.fields}


def edge_names(view: PygView) -> frozenset[str]:
    """Names of inputs with one row per edge, for graphs with equally many nodes and edges."""
    return frozenset(("edge_weight", "edge_attr", *view.graph.arcs.fields))


def node_names(view: PygView) -> frozenset[str]:
    return frozenset(graph_fields(view)) - edge_names(view)


def as_data(values: dict[str, Any]) -> Any:
    """A PyG `Data` if PyG is loaded; else an object with the same attributes."""
    if "torch_geometric" in sys.modules:
        from torch_geometric.data import Data

        return Data(**values)
    return SimpleNamespace(**dict.fromkeys(ABSENT), num_nodes=values["x"].shape[0], **values)


def _is_data(module: nn.Module, first: inspect.Parameter, positional: list[str]) -> bool:
    if first.annotation is not first.empty:
        kind = getattr(first.annotation, "__name__", str(first.annotation)).rpartition(".")[2]
        if kind in ("Data", "Batch", "Tensor"):
            return kind != "Tensor"
    if first.name in DATA:
        return len(positional) < 2 or positional[1] not in ARCS
    read = getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    return len(positional) == 1 and first.name not in ROWS and any(name in read for name in ARCS)


def _usable(module: nn.Module, names: list[str]) -> tuple[str, ...]:
    """The arguments that PyG's own models can use: they all name edge_weight and edge_attr, and state support
    elsewhere.
    """
    if not hasattr(module, "supports_edge_attr"):
        return tuple(names)
    made_for = any(getattr(part, "edge_dim", None) for part in module.modules())
    can = {"edge_weight": module.supports_edge_weight, "edge_attr": module.supports_edge_attr and made_for}
    return tuple(name for name in names if can.get(name, True))
