"""How a user's model takes a typed graph: dictionaries by type and relation, or the union with `edge_type`."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from fullgraph.graph_types import EDGE_TYPE
from fullgraph.own_code import unfit

LEARNED = "rows_of_"  # begins the names of learned rows of types without features
BY_TYPE = "_dict"  # the end of names of arguments that are dictionaries
HETERO = "HeteroData"
TAKES = (
    "takes neither dictionaries by node type and relation nor edge_type, and the graph is typed: name the arguments "
    "x_dict and edge_index_dict if they are such dictionaries, or add edge_type if the model runs over the nodes of "
    "all types in one numbering"
)


def takes_dicts(module: nn.Module) -> bool:
    """Whether a model's forward takes dictionaries by node type and relation; refuse a model of one type."""
    names = _arguments(module)
    if EDGE_TYPE in names or _reads(module, EDGE_TYPE):
        return False
    if any(_is_by_type(part) for part in module.modules()) or _reads_dicts(module):
        return True
    raise unfit(module.forward, TAKES, f"the forward of {type(module).__name__}")


def takes_only_types(module: nn.Module) -> bool:
    """Whether a model's forward takes its features or edges as dictionaries only, or reads them so from its data."""
    names = ("x_dict", "edge_index_dict")
    reads = any(_reads(module, name) for name in names) and not any(
        _reads(module, name) for name in ("x", "edge_index")
    )
    return reads or any(name in names for name in _arguments(module))


def learned_types(module: nn.Module) -> list[str]:
    """The types without features for which a run has added learned rows."""
    return [name.removeprefix(LEARNED) for name in module._parameters if name.startswith(LEARNED)]


def _arguments(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _is_by_type(part: nn.Module) -> bool:
    """Whether a part of a model takes dictionaries, as PyG's HeteroConv, HGTConv, and what to_hetero returns."""
    names = inspect.signature(part.forward).parameters.values()
    return is_hetero_conv(part) or any(map(_is_mapping, names)) or is_from_to_hetero(part)


def is_hetero_conv(part: nn.Module) -> bool:
    return type(part).__name__ == "HeteroConv"


def is_from_to_hetero(part: nn.Module) -> bool:
    """Whether to_hetero or to_hetero_with_bases returned this module."""
    return any(getattr(node.target, "__name__", "") in FX for node in _nodes(part))


FX = ("get_dict", "get_node_offset_dict")  # functions in models that PyG's to_hetero and to_hetero_with_bases return


def _nodes(part: nn.Module) -> Iterator[Any]:
    """The operations of a torch.fx module."""
    graph: Any = getattr(part, "graph", None)
    if hasattr(graph, "nodes") and hasattr(part, "recompile"):
        yield from graph.nodes


def _is_mapping(parameter: inspect.Parameter) -> bool:
    kind = str(parameter.annotation)
    return parameter.name.endswith(BY_TYPE) or HETERO in kind or "dict[" in kind.lower()


def _reads(module: nn.Module, name: str) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return name in getattr(code, "co_names", ())


def _reads_dicts(module: nn.Module) -> bool:
    """Whether forward(data) reads a HeteroData."""
    code = getattr(type(module).forward, "__code__", None)
    return any(name.endswith(BY_TYPE) or name in ("node_types", "edge_types") for name in getattr(code, "co_names", ()))


def as_hetero(x: Mapping[str, Any], arcs: Mapping[Any, Any], named: Mapping[str, Any]) -> Any:
    """A PyG `HeteroData`; named: further dictionaries by type or relation, such as edge_attr_dict."""
    from torch_geometric.data import HeteroData

    data = HeteroData()
    dicts = {name.removesuffix(BY_TYPE): value for name, value in named.items() if name.endswith(BY_TYPE)}
    for name, values in {**dicts, "x": x, "edge_index": arcs}.items():
        for key, value in (values or {}).items():
            data[key][name] = value
    return data
