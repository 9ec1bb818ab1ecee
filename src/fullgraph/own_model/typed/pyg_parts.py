"""Parts of PyG that number or sort the nodes of all types together, which ranks do in their own way: HGTConv,
HeteroLinear, and what to_hetero_with_bases returns.

Legend: of a type n owned, m owned and halo rows; H heads of D columns; e edges of a relation.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from fullgraph.ops import Structure, attend_pairs
from fullgraph.ops.transpose import indptr_of
from fullgraph.own_model.forward import Forward, running
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import Rows, mark, rows_of
from fullgraph.own_model.typed.views import RelationView, TypedView

METADATA = "make {} with the metadata of the graph, data.metadata(): all its node types and relations, in their order"


def use_ours(part: Any) -> None:
    """Let such a part run on the rows of one rank; all other parts stay unchanged."""
    kind = type(part)
    ours = PARTS.get(f"{kind.__module__}.{kind.__name__}")
    if ours is not None:
        part.forward = MethodType(ours, part)
    graph: Any = getattr(part, "graph", None)
    changed = False
    for node in graph.nodes if hasattr(graph, "nodes") and hasattr(part, "recompile") else ():
        name = getattr(node.target, "__name__", "")
        if name in JOINING and getattr(node.target, "__module__", "").endswith("to_hetero_with_bases_transformer"):
            node.target, changed = _over_ranks(node.target, JOINING[name]), True
    if changed:
        part.recompile()


def _over_ranks(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        forward = running.get()
        return theirs(*args) if forward is None else ours(forward, *args)

    function.__name__ = f"{theirs.__name__}_over_ranks"
    return function


# to_hetero_with_bases: the nodes of all types, one type after another, and the edges of all relations


def _typed(forward: Forward) -> TypedView:
    view = forward.view
    assert isinstance(view, TypedView)
    return view


def _offsets(forward: Forward, values: dict[Any, Any], numbers: dict[Any, int]) -> dict[Any, int]:
    """In place of where each type begins, which differs between ranks: only the types."""
    view = _typed(forward)
    if list(numbers) not in (list(view.parts), list(view.relations)):
        refuse(METADATA.format("to_hetero_with_bases"))
    return dict.fromkeys(numbers, 0)


def _edges(forward: Forward, values: dict[Any, Any], numbers: dict[Any, int], offsets: Any = None) -> Tensor:
    """Values of edges, or the edge_index of all relations."""
    inputs = [values[key] for key in numbers]
    rows = rows_of(inputs[0])
    if rows is None or rows.points is None:
        return inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=-2 if inputs[0].dim() > 1 else 0)
    view = _typed(forward)
    if any(x is not view.marked_edge_index[name] for name, x in values.items()):
        refuse("to_hetero_with_bases is given other edges than those of the graph; pass edge_index_dict unchanged")
    return inputs[0] if len(inputs) == 1 else view.joined_edge_index


def _split(forward: Forward, output: Tensor, offsets: dict[Any, int]) -> dict[Any, Tensor]:
    """Rows of all types, by type."""
    view, rows = _typed(forward), rows_of(output)
    if list(offsets) != list(view.parts) or rows is None or rows.dim != output.dim() - 2:
        refuse("to_hetero_with_bases returns something else than rows of nodes; return rows of nodes")
    with torch._C.DisableTorchFunction():
        parts = output.split([part.num_owned for part in view.parts.values()], dim=-2)
        return {
            kind: mark(x, Rows(view.parts[kind].nodes, rows.dim)) for kind, x in zip(view.parts, parts, strict=True)
        }


JOINING: dict[str, Callable[..., Any]] = {
    "get_node_offset_dict": _offsets,
    "get_edge_offset_dict": _offsets,
    "group_edge_placeholder": _edges,
    "split_output": _split,
}


# HGTConv


def _hgt(conv: Any, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
    forward = running.get()
    if forward is None:
        return type(conv).forward(conv, x_dict, edge_index_dict)  # type: ignore[no-any-return]
    if any(hooks for name, hooks in vars(conv).items() if name.startswith(HOOKS) and name.endswith("_hooks")):
        refuse("hooks on the messages of an HGTConv are not called over ranks; leave them out")
    if [name for name in conv.edge_types if name in edge_index_dict] != list(edge_index_dict):
        refuse(METADATA.format("HGTConv"))
    kqv_dict = conv.kqv_lin(x_dict)
    view, nodes = _typed(forward), {kind: rows_of(x) for kind, x in kqv_dict.items()}
    for kind, rows in nodes.items():
        if rows is None or rows.dim or rows.space is not view.parts[kind].nodes:
            refuse(f"HGTConv is given rows of {kind} that are not those of all its nodes; make them from x_dict")
    for name, edge_index in edge_index_dict.items():
        if edge_index is not view.marked_edge_index[name]:
            refuse("HGTConv is given other edges than those of the graph; pass edge_index_dict unchanged")
    with forward.unseen():
        found = {kind: _attended(forward, conv, kind, kqv_dict, edge_index_dict) for kind in kqv_dict}
        # As one tensor, so that rows which nothing reads have gradients of zero, as in PyG.
        rows = torch.cat(list(found.values())).split([len(x) for x in found.values()])
        found = dict(zip(found, rows, strict=True))
    found = {kind: mark(x, Rows(view.parts[kind].nodes, 0)) for kind, x in found.items() if kind in conv.dst_node_types}
    out_dict = conv.out_lin({kind: torch.nn.functional.gelu(x) for kind, x in found.items()})
    for kind, out in out_dict.items():
        if out.size(-1) == x_dict[kind].size(-1):
            alpha = conv.skip[kind].sigmoid()
            out_dict[kind] = alpha * out + (1 - alpha) * x_dict[kind]
    return {kind: out_dict[kind] for kind in found}


HOOKS = ("_propagate", "_message", "_aggregate", "_edge_update")


def _attended(
    forward: Forward, conv: Any, target: str, kqv_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]
) -> Tensor:
    """sum_j softmax_j(q_i . k_j A_r p_r / sqrt(D)) v_j M_r  over all edges into i, of every relation r.

    A column of the attention is a pair of a source and a relation, and no array has a row per edge.
    """
    view, heads, number = _typed(forward), conv.heads, len(conv.edge_types)
    query_nHD = _heads(conv, kqv_dict[target].tensor_split(3, dim=1)[1])
    keys, values = [], []
    into = [name for name in edge_index_dict if name[2] == target]
    for name in into:
        k, _, v = kqv_dict[name[0]].tensor_split(3, dim=1)
        both = forward.keep(kqv_dict[name[0]], view, lambda k=k, v=v: torch.cat([k, v], 1))  # type: ignore[misc]
        # keys and values of a type cross once, whichever relations read them
        k_mHD, v_mHD = (_heads(conv, x) for x in forward.sources(both, 0, view.parts[name[0]]).chunk(2, dim=1))
        of_relation = torch.arange(heads, device=k.device) * number + conv.edge_types_map[name]
        scale_H = conv.p_rel["__".join(name)].view(-1, 1, 1)
        keys.append(torch.einsum("mhd,hdf->mhf", k_mHD, conv.k_rel.weight[of_relation] * scale_H))
        values.append(torch.einsum("mhd,hdf->mhf", v_mHD, conv.v_rel.weight[of_relation]))
    if not into:
        return 0 * query_nHD.flatten(1)
    pattern = view.once(f"edges into {target}: {into}", lambda: _joined([view.between[name] for name in into]))
    scale = 1 / math.sqrt(conv.out_channels // heads)
    return attend_pairs(pattern, query_nHD, torch.cat(keys), torch.cat(values), scale=scale).flatten(1)


def _heads(conv: Any, x: Tensor) -> Tensor:
    return x.reshape(len(x), conv.heads, conv.out_channels // conv.heads)


def _joined(relations: list[RelationView]) -> Structure:
    """The edges of several relations into one type; their columns one after another."""
    patterns = [relation.pattern for relation in relations]
    starts = [0, *accumulate(pattern.num_cols for pattern in patterns)]
    columns_e = torch.cat([p.indices.long() + start for p, start in zip(patterns, starts, strict=False)])
    order_e = torch.argsort(torch.cat([one.graph.arcs.targets() for one in relations]), stable=True)
    degree_n = torch.stack([pattern.indptr.diff() for pattern in patterns]).sum(0)
    return Structure(indptr_of(degree_n), columns_e[order_e], starts[-1])


# HeteroLinear


def _hetero_linear(lin: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """y_i = x_i W_t + b_t, t being the type of row i."""
    forward, rows, types = running.get(), rows_of(x), rows_of(type_vec)
    if forward is None or rows is None or types is None:
        found: Tensor = type(lin).forward(lin, x, type_vec)
        return found
    if rows.dim or not rows.is_single or rows.points is not None or not rows.fits(types):
        refuse("HeteroLinear is given rows and types of different nodes; give both a row per node")
    with forward.unseen():
        out = x.new_zeros(len(x), lin.out_channels)
        for number, weight in enumerate(lin.weight):
            of_type = (type_vec == number).nonzero()[:, 0]
            out = out.index_add(0, of_type, x.index_select(0, of_type) @ weight)
        return mark(out if lin.bias is None else out + lin.bias.index_select(0, type_vec), rows)


PARTS: dict[str, Callable[..., Any]] = {
    "torch_geometric.nn.conv.hgt_conv.HGTConv": _hgt,
    "torch_geometric.nn.dense.linear.HeteroLinear": _hetero_linear,
}
