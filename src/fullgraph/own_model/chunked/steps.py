"""One call of `propagate` or `edge_updater`, chunk by chunk, forward and backward.

No tensor with one row per edge outlives its chunk, except the result of `edge_updater`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fullgraph.errors import InputError
from fullgraph.own_model.chunked.arcs import Chunk
from fullgraph.own_model.chunked.arguments import Arguments
from fullgraph.own_model.chunked.attributes import Attributes
from fullgraph.own_model.forward import Counts, Forward, NotInChunks
from fullgraph.own_model.mode import entered
from fullgraph.own_model.rows.guard import Guard
from fullgraph.own_model.rows.place import refused
from fullgraph.own_model.rows.spaces import Space, rows_of


@dataclass
class Steps:
    """The computation for each chunk: an aggregation of messages, or one row per edge."""

    forward: Forward
    conv: Any
    arguments: Arguments
    names: dict[str, list[str]]  # the arguments of each function
    guard: Guard
    by_edge: bool  # edge_updater's result has one row per edge
    weights: list[Tensor] = field(default_factory=list)  # weights that the functions read beside their arguments
    counts: Counts = field(init=False)
    attributes: Attributes = field(init=False)
    autocast: tuple[str, bool, torch.dtype] = field(init=False)
    trying: bool = False  # a trial on a few rows, in which other ranks take no part
    totals: list[int] = field(default_factory=list)  # numbers of rows that a chunk asked for, in order
    asked: int = 0
    draws: int = 0  # dropout calls in a chunk
    dim: int = 0  # dimension of the result's rows

    def __post_init__(self) -> None:
        self.counts, self.attributes = replace(self.forward.counts), Attributes(self.conv)
        device = self.arguments.edge_index.device.type
        self.autocast = device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    # One chunk

    def of(self, chunk: Chunk, leaves: dict[str, Tensor]) -> Tensor:
        """The chunk's rows of the result."""
        with self._inside(chunk):
            given = self.arguments.of(chunk, leaves)
            if self.by_edge:
                out = self.conv.edge_update(**self._named("edge_update", given))
            else:
                out = self.conv.message(**self._named("message", given))
                out = self.conv.aggregate(out, **self._named("aggregate", given))
            self.draws = max(self.draws, self.forward.counts.draws - self.counts.draws)
        rows = rows_of(out)
        of = chunk.sets.edges if self.by_edge else chunk.sets.nodes
        if not isinstance(out, Tensor) or rows is None or not rows.is_single or not rows.space.is_like(of):
            raise NotInChunks("it gives something else than a row for each node")
        self.dim = rows.dim
        return out

    def _named(self, function: str, given: dict[str, Any]) -> dict[str, Any]:
        return {name: given[name] for name in self.names[function]}

    @contextmanager
    def _inside(self, chunk: Chunk) -> Iterator[None]:
        """Treat the chunk's rows as all rows; every chunk draws the same numbers for a row as the whole layer would."""
        forward = self.forward
        before = forward.sets, forward.trace, forward.calls, forward.guard
        forward.sets, forward.trace, forward.calls, forward.guard = chunk.sets, chunk.trace, 0, self.guard
        forward.counts.draws, forward.chunk, self.asked = self.counts.draws, self, 0
        caught = refused.set([])
        try:
            yield
            if errors := refused.get():
                raise errors[0]
        finally:
            refused.reset(caught)
            forward.sets, forward.trace, forward.calls, forward.guard = before
            forward.chunk = None
            chunk.forget()

    def total(self, space: Space) -> int:
        """The same number in every chunk; only the first chunk asks all ranks, as often as the whole layer would."""
        by, sets = self.arguments.by_target, self.forward.sets
        if space is not sets.nodes and space is not sets.edges:
            raise NotInChunks("its messages count some of the rows")
        of = by.nodes if space is sets.nodes else by.edges
        if self.trying:
            return of.total or of.size
        if self.asked == len(self.totals):
            self.forward.chunk = None
            try:
                self.totals.append(self.forward.total(of))
            finally:
                self.forward.chunk = self
        self.asked += 1
        return self.totals[self.asked - 1]

    # All chunks

    def run(self, chunks: Sequence[Chunk], tensors: Sequence[Tensor]) -> Tensor:
        """The whole result, without its history."""
        out = None
        for chunk in chunks:
            part = self.of(chunk, self.arguments.leaves(chunk, tensors, [False] * len(tensors)))
            with torch._C.DisableTorchFunction():
                if out is None:
                    shape = list(part.shape)
                    by = self.arguments.by_target
                    shape[self.dim] = by.edges.size if self.by_edge else by.nodes.size
                    out = part.new_empty(shape)
                self.set(chunk, out, part)
        assert out is not None
        self.forward.counts.draws = self.counts.draws + self.draws
        return out

    def set(self, chunk: Chunk, out: Tensor, part: Tensor) -> None:
        (chunk.set_edges if self.by_edge else chunk.set_rows)(out, part, self.dim)

    def gradients(
        self, chunks: Sequence[Chunk], tensors: Sequence[Tensor], grad: Tensor, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of the arguments' tensors, then of the weights."""
        totals: list[Tensor | None] = [None] * len(needed)
        checked = False
        for chunk in chunks:  # nothing of a chunk lives on in the next one
            checked |= self._add_gradients(chunk, totals, tensors, grad, needed, check=not checked)
        return [
            total if total is None or n >= len(tensors) else self._as(tensors[n], total, n)
            for n, total in enumerate(totals)
        ]

    def _add_gradients(
        self, chunk: Chunk, totals: list[Tensor | None], tensors: Sequence[Tensor], grad: Tensor,
        needed: Sequence[bool], *, check: bool,
    ) -> bool:  # fmt: skip
        """Add a chunk's gradients to the totals; return whether it has any."""
        leaves = self.arguments.leaves(chunk, tensors, needed[: len(tensors)])
        with self._again():
            part = self.of(chunk, leaves)
        if not part.requires_grad:
            return False
        if check:
            self._check_weights(part, leaves)
        weights = [(n, w) for n, w in enumerate(self.weights, start=len(tensors)) if needed[n]]
        part_grad = chunk.of_edges(grad, self.dim) if self.by_edge else chunk.of_rows(grad, self.dim)
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        found = torch.autograd.grad(
            part, [*wanted.values(), *(w for _, w in weights)], part_grad.contiguous(), allow_unused=True
        )
        for name, one in zip(wanted, found[: len(wanted)], strict=True):
            slot = self.arguments.slots[name]
            if one is not None:
                total = totals[slot.tensor]
                if total is None:
                    total = totals[slot.tensor] = _zeros(tensors[slot.tensor], slot.dim)
                slot.add(chunk, total, _rows_first(one, slot.dim).to(total.dtype), self.arguments.edge_index)
        for (number, _), one in zip(weights, found[len(wanted) :], strict=True):
            if one is not None:
                before = totals[number]
                totals[number] = one if before is None else before + one
        return True

    def _check_weights(self, part: Tensor, leaves: dict[str, Tensor]) -> None:
        known = {id(weight) for weight in self.weights}
        if any(id(weight) not in known for weight in read_beside(part, leaves.values())):
            raise InputError(
                f"the messages of {type(self.conv).__name__} read a weight that they did not read in the first step; "
                "let them keep their memory (--message-memory 1TB)"
            )

    def _as(self, x: Tensor, total: Tensor, number: int) -> Tensor:
        """A gradient in the shape of its tensor."""
        dim = next(slot.dim for slot in self.arguments.slots.values() if slot.tensor == number)
        first = x.movedim(dim, 0).shape
        return total.view(first).movedim(0, dim).to(x.dtype)

    @contextmanager
    def _again(self) -> Iterator[None]:
        """The random state and modes under which the forward pass ran."""
        forward, (device, enabled, dtype) = self.forward, self.autocast
        before, replaying = forward.counts, forward.replaying
        forward.counts, forward.replaying = replace(self.counts), True
        try:
            autocast = torch.autocast(device, dtype, enabled)
            with torch.enable_grad(), autocast, self.attributes.restored(), entered(forward):
                yield
        finally:
            forward.counts, forward.replaying = before, replaying


def _rows_first(x: Tensor, dim: int) -> Tensor:
    first = x.movedim(dim, 0)
    return first.reshape(len(first), first[:1].numel() if len(first) else 0) if first.dim() != 2 else first


def _zeros(x: Tensor, dim: int) -> Tensor:
    """An empty sum of gradients of x, rows first; 16-bit gradients are summed in float32."""
    rows = x.shape[dim]
    width = x.numel() // rows if rows else 0
    return torch.zeros(rows, width, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)


class InChunks(torch.autograd.Function):
    """The result of steps over chunks; the backward pass recomputes each chunk."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, chunks: Sequence[Chunk], number: int, *tensors: Tensor) -> Tensor:
        """The first `number` tensors are arguments, the others weights."""
        ctx.steps, ctx.chunks, ctx.number = steps, chunks, number
        ctx.save_for_backward(*tensors[:number])
        return steps.run(chunks, tensors[:number])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found = ctx.steps.gradients(ctx.chunks, ctx.saved_tensors, grad, ctx.needs_input_grad[3:])
        return None, None, None, *found


def read_beside(out: Tensor, leaves: Iterable[Tensor], first: int = 0) -> Iterator[Tensor]:
    """The weights from which a result was computed, beside `leaves`; raise if any other tensor with a history was used.

    first: nodes of autograd with a smaller number existed before.
    """
    given = {id(leaf) for leaf in leaves}
    found, queue = set[Any](), [out.grad_fn]
    while queue:
        node: Any = queue.pop()
        if node is None or node in found:
            continue
        found.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            if id(leaf) not in given:
                yield leaf
        elif node._sequence_nr() < first:
            raise NotInChunks("its messages read a tensor with a gradient that is no argument and no weight")
        queue += [one for one, _ in node.next_functions]
