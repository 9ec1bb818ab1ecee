"""The self-check: run a user's model on a small piece of the graph, in one process and over simulated ranks.

Both train for a few steps, with an evaluation after each. Every layer's output, the logits, all gradients, the weights
and the buffers must be equal. The check finds faults that the guard (`rows/`) cannot see, such as computing with
len(x).
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fullgraph.copied import copied
from fullgraph.errors import InputError, PeerLost, one_line
from fullgraph.exchange import Clock
from fullgraph.own_code import unfit
from fullgraph.own_model.inputs import Takes
from fullgraph.own_model.live import LiveRows, Readings, counters, first_change, kept_rows
from fullgraph.own_model.on_rows import OnRows
from fullgraph.own_model.outputs import logits_of, parts_of
from fullgraph.own_model.piece import RANKS, Inputs, Piece, piece_of
from fullgraph.own_model.prepare import quieten, unwrapped
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.quantiles import with_empty_sets
from fullgraph.own_model.rows.draws import DRAWS, drawn, gumbel_softmax, middle
from fullgraph.own_model.rows.place import place_of
from fullgraph.own_model.tables import Tables
from fullgraph.own_model.typed.piece import TypedPiece, begin
from fullgraph.own_model.typed.views import TypedView
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import RankGraph
from fullgraph.transport import Key, Transport

STEPS, RATE, TOLERANCE = 3, 0.1, 1e-8
# processor seconds for simulated ranks: at least the first, and the second times one process's
LEAST_WORK, MORE_WORK = 600.0, 300
ROW_PER_NODE = "put what has a row for every node of {} into the graph, or make it a weight or buffer of so many rows"
WAY_OUT = "correct the model, or go without the check (--no-check, check=False)"
Outputs = dict[tuple[str, int, int], Tensor]  # key: part of the model, pass, call in that pass
Sum = Callable[[Tensor], Tensor]
Live = tuple[Readings, str]


@dataclass(eq=False)
class Seen:
    """Everything that a model returned over a few steps, on the nodes `ids`."""

    ids: Tensor
    outputs: Outputs = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)  # alternately from training and from evaluation
    grads: dict[str, Tensor] = field(default_factory=dict)  # by step and name, summed over all ranks
    buffers: dict[str, Tensor] = field(default_factory=dict)  # by step and name
    readings: Readings = field(default_factory=Readings)
    keeps: str = ""  # an attribute that holds rows, or changes

    @property
    def evaluated(self) -> "Seen":
        """The same without rows of training."""
        return replace(self, outputs={}, logits=self.logits[1::2])


def _with_float64(function: Callable[..., Live]) -> Callable[..., Live]:
    """Create new tensors of the checked dtype, for a model that writes `torch.zeros(8)`."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Live:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    return checked


@_with_float64
def self_check(
    module: nn.Module, view: PygView, x: Any, inputs: Inputs, *, seed: int,
    tables: Mapping[str, str] = MappingProxyType({}),
    live: bool = False,
) -> Live:  # fmt: skip
    """Raise one line if one process and simulated ranks differ; `module` is a copy that the check may change.

    tables: weights and buffers with a row per node, and the types of their nodes. live: also train with live rows.
    Return how often neighbours are read, and why all rows are needed, if they are.
    """
    if not view.num_owned:
        return Readings(), ""
    begun = time.process_time()
    if isinstance(view, TypedView):
        piece: Piece = TypedPiece.of(piece_of(view, *begin(view)), view)
    else:
        piece = piece_of(view)
    if tables:
        piece = replace(piece, numbers=view.ids.cpu())
    try:
        model = _in_float64(_of_piece(module.cpu(), piece, tables))
        alone = _in_one_process(model, piece, x, inputs)
    except InputError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {one_line(error)}"
        table = ""
        if str(view.num_nodes) in problem:
            table = f"{ROW_PER_NODE.format(view.num_nodes)}; "
        elif tables:
            table = f"write x.size(0) or the size of {next(iter(tables))} for the number of nodes; "
        elif (arcs := Takes.of(module, tuple(inputs[1])).arcs) in ("adj", "adj_t"):
            table = (
                f"{arcs} is edge_index [2, edges]; for products make a matrix of it, torch.sparse_coo_tensor("
                "edge_index.flip(0), values, (x.size(0), x.size(0))); "
            )
        raise InputError(
            f"self-check: the model fails on a small piece of the graph ({problem}); {table}{WAY_OUT}"
        ) from error
    work = max(LEAST_WORK, MORE_WORK * (time.process_time() - begun))

    def over(ranks: int, *, draws: bool = True, trained: bool = False, live: Readings | None = None) -> list[Seen]:
        return _over_ranks(
            model, piece, x, inputs, ranks, tables, seed=seed, draws=draws, work=work, trained=trained, live=live
        )

    _compare(alone, over(RANKS, draws=False), "one process")
    _compare(over(1)[0], drawn := over(RANKS), "one rank, with dropout")
    if not live:
        return Readings(), ""
    if drawn[0].keeps:
        return Readings(), f"the model keeps values from step to step ({drawn[0].keeps})"
    try:
        fewer = over(RANKS, trained=True, live=drawn[0].readings)
        _compare(over(1, trained=True)[0].evaluated, [seen.evaluated for seen in fewer], "all rows")
    except InputError:
        return Readings(), "it is not known which rows the loss reads"
    return drawn[0].readings, ""


def _of_piece(module: nn.Module, piece: Piece, tables: Mapping[str, str]) -> nn.Module:
    """The model with only the piece's rows in its tables, and with the piece's number of nodes if it stores one."""
    held = {name: piece.real(kind) for name, kind in tables.items()}
    if tables:
        Tables(module, held)
        sizes = {of.total: len(of.ids) for of in held.values()}
        for part in module.modules():
            library = type(part).__module__.startswith(("torch.", "torch_geometric."))  # its widths may equal a count
            for name, value in list(vars(part).items()):
                if type(value) is int and value in sizes and (not library or name == "num_embeddings"):
                    setattr(part, name, sizes[value])
    return module


def _in_float64(module: nn.Module) -> nn.Module:
    """Convert weights, buffers, and tensors that a model keeps as plain attributes."""
    for part in module.double().modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, name, value.detach().double())
    return module


def _generators() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), kind, bytes(keys), *rest  # type: ignore[arg-type]


class _Still(TorchFunctionMode):
    """Switches dropout off and makes all random numbers equal."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.dropout, torch.dropout):
            return args[0]
        if func in DRAWS:
            return drawn(func, args, kwargs or {}, torch.empty, middle)
        if func is F.gumbel_softmax:
            with self:
                return gumbel_softmax(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _in_one_process(model: nn.Module, piece: Piece, x: Any, inputs: Inputs) -> Seen:
    model = unwrapped(copied(model))
    for name, part in model.named_modules():
        quieten(part, name)
        with_empty_sets(part)
    edge_index = piece.edge_index()
    assert piece.graph.edge_attr is not None
    arcs = torch.from_numpy(piece.graph.edge_attr[:, 0].copy()).long()
    nodes = torch.arange(piece.graph.num_nodes)
    args, kwargs = piece.inputs(inputs, nodes, arcs)
    takes = Takes.of(model, tuple(kwargs))
    for name, number in piece.counts().items():
        if name in takes.needed or (takes.data and piece.target):
            kwargs.setdefault(name, number)
    targets = piece.targets(nodes)

    def run() -> list[Tensor]:
        drawn = _generators()
        with _Still():
            out = takes.call(model, piece.cut(x, "x", nodes, arcs), edge_index, args, kwargs)
        if _generators() != drawn:
            raise InputError(
                "self-check: the model draws from Python's random or NumPy's, which differ between ranks: use torch's"
            )
        rows = [(name, x) for name, x in parts_of(out) if isinstance(x, Tensor) and x.shape[:1] == (len(targets),)]
        logits = logits_of(rows, piece.target)
        if logits is None:
            told = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            asked = f"{len(targets)} {piece.target}".rstrip()
            problem = f"returned {told} for a graph of {asked} nodes; its forward must return logits, one row per node"
            if isinstance(out, Tensor) and out.shape[:1] == (piece.total,):
                problem += f"; {ROW_PER_NODE.format(piece.total)}"
            raise unfit(model.forward, problem, "the model")
        return [logits, *(x for _, x in rows if x is not logits and not piece.target)]

    return _trained(model, targets, run, lambda total: total, records=not piece.target)


def _over_ranks(
    model: nn.Module, piece: Piece, x: Any, inputs: Inputs, ranks: int, names: Mapping[str, str], *, seed: int,
    draws: bool, work: float, trained: bool, live: Readings | None,
) -> list[Seen]:  # fmt: skip
    """trained: the loss reads training nodes alone. live: layers compute only the rows that it reads."""
    from fullgraph.transport.ranks import StillRuns, run_threads

    part = Assignment(piece.part.part % ranks, ranks, "random", 0)

    def body(transport: Transport) -> Seen:
        mine = cut_parts(piece.graph, part, transport.rank)
        assert mine.attr is not None
        arcs = mine.attr[:, 0].long()
        graph, clock = RankGraph.of_part(mine, torch.float64), Clock()
        view = piece.opened(
            graph=graph, transport=transport, num_nodes=piece.graph.num_nodes, counts={}, name="self-check", clock=clock
        )
        on_rows = OnRows(copied(model), seed=seed, draws=draws, fields=tuple(inputs[1]))
        on_rows.live = None if live is None else LiveRows.of(view, live, worth=1.0)
        held = {name: piece.held(kind, mine.ids) for name, kind in names.items()}
        tables = Tables(on_rows.module, held, kinds=names)
        on_rows.hold(tables)
        args, kwargs = piece.inputs(inputs, mine.ids, arcs)
        rows = piece.cut(x, "x", mine.ids, arcs)

        states: list[dict[str, Any]] = []

        def run() -> list[Tensor]:
            clock.tick()  # each pass, in training and in evaluation, is its own step
            found = on_rows(view, rows, *args, **kwargs).rows[: 1 if piece.target else None]
            states.append(counters(on_rows.module))
            return found

        def over_ranks(total: Tensor) -> Tensor:
            return transport.all_reduce(Key("self-check gradients", clock.step), total).wait()

        read = view.target.graph.rows.masks["train"] if trained else None
        ids = piece.targets(mine.ids)
        seen = _trained(on_rows.module, ids, run, over_ranks, tables, read, records=not piece.target)
        keeps = kept_rows(on_rows.module) or first_change(states[0], states[-1])
        return replace(seen, readings=on_rows.readings, keeps=keeps)

    try:
        seen: list[Seen] = run_threads(ranks, body, work=work)
    except StillRuns as error:
        raise InputError(
            f"self-check: on {ranks} simulated ranks the model is not done after {work:.0f} s of processor time "
            f"({one_line(error, 80)}): a loop in it may not end on a part of the rows; {WAY_OUT}"
        ) from error
    except InputError:
        raise
    except (PeerLost, AssertionError) as error:  # ranks wait for one another, or for different messages
        raise InputError(
            f"self-check: {place_of(error)}one rank waits here for another, which does something else: the model takes "
            "a sum or calls a layer on some ranks alone, such as under `if len(index) > 0`; do it on all ranks, an "
            f"empty set of rows included ({one_line(error, 160)}); {WAY_OUT}"
        ) from error
    except Exception as error:
        raise InputError(
            f"self-check: {place_of(error)}the model fails on {ranks} simulated ranks, though not in one process "
            f"({type(error).__name__}: {one_line(error)}); {WAY_OUT}"
        ) from error
    return seen


def _trained(
    model: nn.Module, ids: Tensor, run: Callable[[], list[Tensor]], total: Sum, tables: Tables | None = None,
    read: Tensor | None = None, records: bool = True,
) -> Seen:  # fmt: skip
    """Train for a few steps, with an evaluation after each.

    tables: weights and buffers with one row per node. read: the rows of the logits that the loss reads; None: it reads
    everything that the model returns. records: keep the outputs of all parts of the model.
    """
    seen = Seen(ids)
    for name, part in model.named_modules() if records else ():
        label = f"{type(part).__name__} ({name})" if name else type(part).__name__
        part.register_forward_hook(_recorder(label, seen))
    params = dict(model.named_parameters())
    for step in range(STEPS):
        model.train()
        rows = run()
        if read is None:
            sum(_weighted(x, ids) for x in rows if x.requires_grad or x is rows[0]).backward()  # type: ignore[union-attr]
        else:
            _weighted(rows[0][read], ids[read]).backward()
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in params.items()}
        grads = tables.at_places(grads) if tables else grads
        if grads:
            flat = total(torch.cat([grad.flatten() for grad in grads.values()]))
            whole = dict(zip(grads, flat.split([grad.numel() for grad in grads.values()]), strict=True))
            shaped = {name: grad.view_as(grads[name]) for name, grad in whole.items()}
            _descend(params, tables.own(shaped) if tables else shaped)
            seen.grads |= {f"{name} in step {step + 1}": grad for name, grad in whole.items()}
        seen.logits.append(rows[0].detach())
        seen.outputs |= {(f"the returned rows {place}", step, 0): x.detach() for place, x in enumerate(rows[1:], 1)}
        model.eval()
        with torch.no_grad():
            seen.logits.append(run()[0])
        buffers = {name: b.clone().double() for name, b in model.named_buffers()}
        if tables and any(name in tables for name in buffers):
            of_all = {name: b for name, b in tables.at_places(buffers).items() if name in tables}
            flat = total(torch.cat([b.flatten() for b in of_all.values()]))
            parts = flat.split([b.numel() for b in of_all.values()])
            buffers |= {name: part.view_as(of_all[name]) for name, part in zip(of_all, parts, strict=True)}
        seen.buffers |= {f"{name} after step {step + 1}": b for name, b in buffers.items()}
    return seen


def _weighted(x: Tensor, ids: Tensor) -> Tensor:
    """A sum of rows with fixed weights by node and class."""
    columns = torch.arange(1, prod(x.shape[1:]) + 1, dtype=torch.float64)
    return (x.reshape(len(x), len(columns)) * torch.sin(ids[:, None].double() * 7 + columns)).sum()


@torch.no_grad()
def _descend(params: dict[str, nn.Parameter], grads: dict[str, Tensor]) -> None:
    """Take a step that is always small, and proportional to the gradients so that rounding errors stay small."""
    largest = max((float(grad.abs().max()) for grad in grads.values() if grad.numel()), default=0.0)
    for name, p in params.items():
        if p.requires_grad:
            p.sub_(grads[name], alpha=RATE / (1 + largest))
        p.grad = None


def _recorder(label: str, seen: Seen) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim():
            passes = len(seen.logits)
            call = next(call for call in count() if (label, passes, call) not in seen.outputs)
            seen.outputs[label, passes, call] = out.detach()

    record.looks_on = True  # type: ignore[attr-defined]  # our kernels need not make way for it
    return record


def _compare(one: Seen, many: list[Seen], what: str) -> None:
    def joined(values: list[Tensor]) -> Tensor | None:
        if [len(v) for v in values] != [len(seen.ids) for seen in many] or len({v.shape[1:] for v in values}) > 1:
            return None
        out = values[0].new_empty(len(one.ids), *values[0].shape[1:])
        for seen, value in zip(many, values, strict=True):
            out[seen.ids] = value
        return out

    calls = [Counter(call[:2] for call in seen.outputs) for seen in (one, *many)]
    for call, want in one.outputs.items():
        if len({calls_of[call[:2]] for calls_of in calls}) == 1:  # our own kernels skip some parts of a layer
            got = joined([seen.outputs[call] for seen in many])
            if got is not None and got.shape == want.shape and not _close(got, want):
                _stop(f"the output of {call[0]}", got, want, what)
    for number, want in enumerate(one.logits):
        got = joined([seen.logits[number] for seen in many])
        if got is None or got.shape != want.shape:
            raise InputError(f"self-check: on {RANKS} ranks the model returns another shape than in {what}")
        if not _close(got, want):
            _stop(f"the output of the model in {'evaluation' if number % 2 else 'training'}", got, want, what)
    for name, want in one.grads.items():
        if not _close(many[0].grads[name], want):
            _stop(f"the gradient of {name}", many[0].grads[name], want, what)
    for name, want in one.buffers.items():
        for seen in many:
            if seen.buffers[name].shape != want.shape or not _close(seen.buffers[name], want):
                _stop(f"the buffer {name}", seen.buffers[name], want, what)


def _close(got: Tensor, want: Tensor) -> bool:
    return bool(torch.allclose(got.double(), want.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


def _stop(where: str, got: Tensor, want: Tensor, what: str) -> None:
    error = float((got.double() - want.double()).abs().max()) if got.shape == want.shape else float("nan")
    raise InputError(
        f"self-check: {where} on {RANKS} ranks is not that of {what} (off by {error:.2g}); a part of the model looks "
        "further than a node's in-neighbours, or computes with the number of rows (len(x)): use x.size(0), mean, sum "
        "and max over nodes, BatchNorm, F.dropout and message-passing layers"
    )
