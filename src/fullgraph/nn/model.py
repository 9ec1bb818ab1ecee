"""Models as chains of blocks: graph convolutions, norms, residuals, dropout, trailing dense layers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fullgraph.cached import cached_property
from fullgraph.nn.conv import Conv
from fullgraph.nn.layer_plan import LayerShape
from fullgraph.nn.linear import Linear
from fullgraph.nn.norm import BatchNorm, LayerNorm
from fullgraph.nn.view import Features, GraphView, RowMap, WholeView
from fullgraph.ops import dropout_key
from fullgraph.own_code import own_code, told, unfit

State = tuple[Features, ...]  # what passes from block to block: the rows, then other values that later blocks need


class Block(nn.Module, ABC):
    """One link of a chain, `(state, view) -> state`; `layer` names its messages and its dropout.

    A block knows rows only through the state: a pipeline calls it once per chunk, and may cut the chain after it.
    """

    def __init__(self, layer: int, *, relu: bool, dropout: float, seed: int) -> None:
        super().__init__()
        self.layer, self.relu, self.dropout, self.seed = layer, relu, dropout, seed

    @abstractmethod
    def forward(self, state: State, view: GraphView) -> State: ...

    @cached_property
    def sums(self) -> bool:
        """Whether it reads rows of other nodes through convolutions that only sum them."""
        convs = [part for part in self.modules() if isinstance(part, Conv)]
        return bool(convs) and all(conv.sums for conv in convs)

    def row_map(self, step: int) -> RowMap:
        """The row map before the block's weights: rows cross before their activation."""
        p = self.dropout if self.training else 0.0
        return RowMap(relu=self.relu, p=p, key=dropout_key(self.seed, step, self.layer) if p else 0)


CALLED = "a convolution is called with (x, view, layer, row_map), and computes the rows of message.own, not all of x"


class Chain(nn.Module):
    """s_0 = (x,);  s_{i+1} = block_i(s_i);  the last state's rows are the logits.

    Only the model registers the blocks' modules, so a weight's name does not name its block.
    """

    blocks: tuple[Block, ...]
    checkpoint_layers = False  # keep only the state between blocks, and recompute the rest in the backward pass

    def forward(self, x: Features, view: WholeView) -> Tensor:
        view.enter(training=self.training, rows=self.reading_rows())
        state: State = (x,)
        # the backward pass begins with the last block, so recomputing it would save no memory
        *others, last = self.blocks
        for block in others:
            state = self._run(block, state, view)
        state = last(state, view)
        assert isinstance(state[0], Tensor)
        return state[0]

    def _run(self, block: Block, state: State, view: WholeView) -> State:
        result: State
        if self.checkpoint_layers and self.training and torch.is_grad_enabled():
            # No torch generator is used: dropout is computed from its key, so a second pass draws the same.
            result = checkpoint(
                block, state, view, use_reentrant=False, preserve_rng_state=False, context_fn=view.twice
            )
        else:
            result = block(state, view)
        return result

    def reading_rows(self) -> frozenset[int]:
        """The layers that may read single rows of other nodes; the others only sum them."""
        return frozenset(block.layer for block in self.blocks if not block.sums)

    def shapes(self) -> list[tuple[int, LayerShape, bool]]:
        """Each convolution's layer, its shape, and whether it reads the model's input."""
        return [
            (block.layer, part.shape, block is self.blocks[0])
            for block in self.blocks
            for part in block.modules()
            if isinstance(part, Conv)
        ]

    def layer_names(self) -> dict[str, nn.Module]:
        """Blocks by number, from "1"; then the parts with weights, by name."""
        named = {name: part for name, part in self.named_modules() if name}
        return {str(number): block for number, block in enumerate(self.blocks, start=1)} | named

    def train(self, mode: bool = True) -> "Chain":
        for block in self.blocks:
            block.train(mode)
        return super().train(mode)


class Layer(Block):
    """z <- norm(update(drop(act(z)))) (+ z),  where the update is a convolution or a dense map."""

    def __init__(
        self, layer: int, update: Conv | Linear, norm: nn.Module | None = None, *, relu: bool = True,
        residual: bool = False, dropout: float, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(layer, relu=relu, dropout=dropout, seed=seed)
        self.update, self.norm, self.residual = update, norm or nn.Identity(), residual

    def forward(self, state: State, view: GraphView) -> State:
        z = state[0]
        out = normalise(self.norm, self.updated(z, view), view)
        if self.residual and isinstance(z, Tensor) and out.shape[1] == z.shape[1]:
            out = out + z[: len(out)]
        return (out,)

    def updated(self, z: Features, view: GraphView) -> Tensor:
        row_map = self.row_map(view.step)
        out: Tensor
        if isinstance(self.update, Conv):
            with own_code(self.update, fix=CALLED):
                out = self.update(z, view, self.layer, row_map)
            check_rows(self.update, out, z, view, self.layer)
        else:
            out = self.update(row_map(z, view.ids))
        return out


def check_rows(conv: Conv, out: Any, z: Features, view: GraphView, layer: int) -> None:
    """Refuse a convolution's output that has not a row for each row that the layer computes, or reads."""
    fits = isinstance(out, Tensor) and out.is_floating_point() and out.shape[1:] == (conv.out_width,)
    if fits and len(out) == z.shape[0]:
        return
    rows = len(view.targets(view.ids, layer)[0])
    if not fits or len(out) != rows:
        problem = f"returned {told(out)} in layer {layer + 1}: return {rows} rows of {conv.out_width} numbers"
        raise unfit(conv, f"{problem}, one for each row of view.targets")


class GNN(Chain):
    """x_{l+1} = norm(conv_l(drop(act(x_l)))) (+ x_l);  the last layer has neither norm nor residual."""

    def __init__(
        self, convs: list[Conv], linears: list[Linear], *, norm: str, dropout: float, input_dropout: bool,
        residual: bool, seed: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.convs, self.linears = nn.ModuleList(convs), nn.ModuleList(linears)
        widths = [conv.out_width for conv in convs] + [linear.out_features for linear in linears]
        norms = [make_norm(norm, width) for width in widths[:-1]]
        self.norms = nn.ModuleList(norms)
        updates: list[Conv | Linear] = [*convs, *linears]
        pairs = enumerate(zip(updates, [*norms, None], strict=True))
        self.blocks = tuple(
            Layer(
                i, *pair, relu=i > 0, residual=residual and 0 < i < len(norms),
                dropout=dropout if i or input_dropout else 0.0, seed=seed,
            )
            for i, pair in pairs
        )  # fmt: skip


def make_norm(name: str, width: int) -> nn.Module:
    norms: dict[str, Callable[[int], nn.Module]] = {"layer": LayerNorm, "batch": BatchNorm, "none": nn.Identity}
    return norms[name](width)


def normalise(norm: nn.Module, x: Tensor, view: GraphView) -> Tensor:
    out: Tensor = norm(x, view) if isinstance(norm, BatchNorm) else norm(x)
    return out
