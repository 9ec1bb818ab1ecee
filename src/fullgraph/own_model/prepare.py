"""Walk a user's module: number its message-passing layers, adapt layers that compute from arcs, refuse the rest."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_model.chunked import Chunks, run_in_chunks
from fullgraph.own_model.counting import count_all_rows
from fullgraph.own_model.fast import use_kernels
from fullgraph.own_model.forward import running
from fullgraph.own_model.norms import over_all_ranks
from fullgraph.own_model.quantiles import with_empty_sets
from fullgraph.own_model.rows.backward import SHARE
from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.spaces import Ends, Rows, mark, rows_of
from fullgraph.own_model.typed.forms import is_from_to_hetero, is_hetero_conv
from fullgraph.own_model.typed.pyg_parts import use_ours

POOL = "a pooling of all nodes; the model must give logits for every node: pool outside of it, with fg.gather_rows"
ALL = (
    "attention between all nodes; use layers over edges, such as TransformerConv, or write linear attention with sums "
    "over nodes"
)
ORDER = (
    "an aggregation that depends on the order of messages, which differs between ranks; use mean, max, std or softmax"
)
AGGREGATIONS = "torch_geometric.nn.aggr."
# aggregations with modules of the user's
GIVEN_MODULES = {f"{AGGREGATIONS}{name}" for name in ("deep_sets", "attention")}
REFUSED = {  # parts of PyG, by the module that defines them
    "torch_geometric.nn.pool": POOL,
    "torch_geometric.nn.unpool": POOL,
    "torch_geometric.nn.dense.diff_pool": POOL,
    "torch_geometric.nn.dense.mincut_pool": POOL,
    "torch_geometric.nn.dense.dmon_pool": POOL,
    "torch_geometric.nn.attention": ALL,
    "torch_geometric.nn.conv.gps_conv": ALL,
    "torch_geometric.nn.norm.instance_norm": "a norm over all nodes; use BatchNorm, which is the same for one graph",
    **{f"{AGGREGATIONS}{name}": ORDER for name in ("lstm", "gru", "mlp", "lcm", "patch_transformer")},
    f"{AGGREGATIONS}equilibrium": "an aggregation by gradients of a mean over all nodes; use mean, max, std or softmax",
}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that torch.compile wraps: operations on rows must be visible, so it runs uncompiled."""
    module = getattr(module, "_orig_mod", module)
    part: Any
    for part in module.modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
        if hasattr(part, "_orig_mod"):  # it keeps its name in the state dict
            part.forward = part._orig_mod.__call__
    return module


def prepared(module: nn.Module, chunks: Chunks | None = None) -> nn.Module:
    """The same module, able to run on one rank's rows; weights and their names are unchanged.

    chunks: for its layers' messages; None: no chunks.
    """
    module = unwrapped(module)
    _check_weights(module)
    beside = _side_by_side(module)
    groups = {id(part): n if len(group) > 1 else None for n, group in enumerate(layers_of(module)) for part in group}
    for name, part in module.named_modules():
        label = f"{type(part).__name__}{f' ({name})' if name else ''}"
        _check(part, label)
        over_all_ranks(part, label)
        use_ours(part)
        with_empty_sets(part)
        _trust(part)
        count_all_rows(part)
        if hasattr(part, "cached") and isinstance(part.cached, bool):
            part.cached = False  # a cache filled in training would be read in evaluation
        if is_message_passing(part):
            _number(part, groups[id(part)], id(part) if id(part) in beside else None)
            if getattr(part, "flow", "") == "source_to_target":
                if chunks is not None:
                    run_in_chunks(part, label, chunks)
                use_kernels(part)
        quieten(part, label)
    return module


def _check_weights(module: nn.Module) -> None:
    for name, weight in module.named_parameters():
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            raise InputError(f"the hook of the weight {name}: a hook {SHARE}")


def _check(part: nn.Module, label: str) -> None:
    home = type(part).__module__
    for place, reason in REFUSED.items():
        if home == place or home.startswith(f"{place}."):
            raise InputError(f"the layer {label} is {reason}")
    if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
        raise InputError(f"the layer {label} gives sparse gradients, which no rank can sum; leave out sparse=True")
    if isinstance(part, torch.jit.ScriptModule):
        raise InputError(
            f"the layer {label} is TorchScript, in which rows of nodes cannot be followed over ranks; "
            "use the Python module itself"
        )
    if isinstance(part, nn.SyncBatchNorm):
        raise InputError(f"the layer {label} talks over torch.distributed by itself; use nn.BatchNorm1d")
    if isinstance(part, nn.modules.instancenorm._InstanceNorm):
        raise InputError(f"the layer {label} is a norm over all nodes; use nn.BatchNorm1d")


def is_message_passing(part: nn.Module) -> bool:
    """Whether a part is a PyG message-passing layer; imports nothing, since a model with one has loaded PyG."""
    return "torch_geometric.nn.conv.message_passing.MessagePassing" in _kinds(part)


def _kinds(part: nn.Module) -> set[str]:
    """The full names of a part's classes."""
    return {f"{kind.__module__}.{kind.__name__}" for kind in type(part).__mro__}


def layers_of(module: nn.Module) -> list[list[nn.Module]]:
    """The message-passing layers; those of one nn.ModuleDict with a layer per relation are one layer."""
    found: list[list[nn.Module]] = []
    known = set[int]()
    for part in module.modules():
        by_relation = isinstance(part, nn.ModuleDict) and all("__" in name for name in part._modules)
        group = list(part.children()) if by_relation else [part]
        group = [one for one in group if is_message_passing(one) and id(one) not in known]
        found += [group] if group else []
        known.update(map(id, group))
    return found


def num_layers(module: nn.Module) -> int:
    return max(1, len(layers_of(module)))


def _side_by_side(module: nn.Module) -> set[int]:
    """The ids of layers that PyG calls on the same rows, one for each relation: those of a HeteroConv, and the copies
    that to_hetero makes of a layer.
    """
    found = set[int]()
    for part in module.modules():
        if is_hetero_conv(part):
            part.register_forward_pre_hook(_begin_group)
        if is_hetero_conv(part) or is_from_to_hetero(part):
            of_relations = [one for one in part.modules() if isinstance(one, nn.ModuleDict)]
            found |= {id(layer) for one in of_relations for layer in one.children()}
    return found


def _begin_group(*_: Any) -> None:
    if (forward := running.get()) is not None:
        forward.counts.group = None


def _number(part: Any, group: int | None, beside: int | None) -> None:
    """Tell the forward pass when a layer begins and ends. group: of the layers of an nn.ModuleDict."""

    def enter(*_: Any) -> None:
        if (forward := running.get()) is not None:
            forward.enter(group, beside)

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(_leave)


def _leave(*_: Any) -> None:
    if (forward := running.get()) is not None:
        forward.leave()


def _trust(part: Any) -> None:
    """Trust PyG's aggregations of messages by target: a rank has all messages to its nodes.

    An aggregation that contains modules, such as DeepSetsAggregation, is followed like the rest of the model.
    """
    whole: Any = getattr(part.forward, "__func__", None)
    kind = type(part)
    homes = {type(one).__module__ for one in part.modules()}
    if not kind.__module__.startswith(AGGREGATIONS) or homes & GIVEN_MODULES or not all(map(_is_known, homes)):
        return

    def forward(self: Any, x: Tensor, index: Any = None, *args: Any, **kwargs: Any) -> Any:
        now, by, rows = running.get(), rows_of(index), rows_of(x)
        if now is None or by is None or rows is None or not now.sets.has_nodes(by.points):
            return whole(self, x, index, *args, **kwargs)
        with now.trust():
            out = whole(self, x, index, *args, **kwargs)
        for one in flat(out):
            mark(one, Rows(by.points, rows.dim))  # type: ignore[arg-type]
        return out

    part.forward = MethodType(forward, part)


def _is_known(home: str) -> bool:
    return home.startswith(("torch.nn.", "torch_geometric.nn."))


def quieten(part: Any, label: str) -> None:
    """Switch off what one rank cannot do: SuperGAT's own loss, which samples arcs of the whole graph, and GroupAddRev's
    backward pass, which frees rows and runs layers outside of a forward pass.
    """
    if "torch_geometric.nn.models.rev_gnn.InvertibleModule" in _kinds(part):
        part.disable = True
    if type(part).__name__ != "SuperGATConv":
        return

    def no_arcs(*_: Any, **__: Any) -> Tensor:
        none = torch.empty(2, 0, dtype=torch.int64, device=next(part.parameters()).device)
        if (now := running.get()) is not None:
            mark(none, Rows(now.sets.picked(now.sets.edges, none[0], 0), 1, points=Ends.BOTH))
        return none

    def no_loss() -> Tensor:
        raise InputError(f"the attention loss of {label} samples edges of the whole graph; train on the logits alone")

    part.positive_sampling = part.negative_sampling = no_arcs
    part.get_attention_loss = no_loss
