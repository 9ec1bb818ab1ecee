"""Models as chains of blocks: graph convolutions, norms, residuals, dropout, trailing dense layers."""

from collections.abc import Callable

from torch import Tensor, nn

from fullgraph.nn.conv import Conv
from fullgraph.nn.linear import Linear
from fullgraph.nn.norm import BatchNorm
from fullgraph.nn.view import Features, GraphView, RowMap
from fullgraph.ops import dropout_key

State = tuple[Features, ...]  # what travels from block to block: the rows, then what later blocks still need of them


class Block(nn.Module):
    """One link of a chain, `(state, view) -> state`; `place` is its number there, and its dropout's.

    All it knows of rows is in the state, for a pipeline calls it once a chunk of them and may cut the chain behind it.
    """

    def __init__(self, place: int, *, dropout: float, seed: int) -> None:
        super().__init__()
        self.place, self.dropout, self.seed = place, dropout, seed

    def forward(self, state: State, view: GraphView) -> State:
        raise NotImplementedError

    def row_map(self, step: int) -> RowMap:
        """What comes before the block's weights; rows travel before their activation, all but the input."""
        p = self.dropout if self.training else 0.0
        return RowMap(relu=self.place > 0, p=p, key=dropout_key(self.seed, step, self.place) if p else 0)


class Chain(nn.Module):
    """s_0 = (x,);  s_{i+1} = block_i(s_i);  the last state's rows are the logits.

    Blocks share their modules with the model, which alone registers them: a weight's name does not tell its block.
    """

    blocks: tuple[Block, ...]

    def forward(self, x: Features, view: GraphView) -> Tensor:
        state: State = (x,)
        for block in self.blocks:
            state = block(state, view)
        assert isinstance(state[0], Tensor)
        return state[0]

    def train(self, mode: bool = True) -> "Chain":
        for block in self.blocks:
            block.train(mode)
        return super().train(mode)


class GNN(Chain):
    """x_{l+1} = norm(conv_l(drop(act(x_l)))) (+ x_l);  the last layer has neither norm nor residual."""

    def __init__(
        self, convs: list[Conv], linears: list[Linear], *, norm: str, dropout: float, residual: bool, seed: int
    ) -> None:
        super().__init__()
        self.convs, self.linears = nn.ModuleList(convs), nn.ModuleList(linears)
        self.dropout, self.residual, self.seed = dropout, residual, seed
        widths = [conv.out_width for conv in convs] + [linear.out_features for linear in linears]
        norms = [make_norm(norm, width) for width in widths[:-1]]
        self.norms = nn.ModuleList(norms)
        updates: list[Conv | Linear] = [*convs, *linears]
        self.blocks = tuple(
            Layer(place, update, after, residual=residual and place > 0, dropout=dropout, seed=seed)
            for place, (update, after) in enumerate(zip(updates, [*norms, None], strict=True))
        )


class Layer(Block):
    """z <- norm(update(drop(act(z)))) (+ z):  the update is a convolution or a dense map, the last one without norm."""

    def __init__(
        self, place: int, update: Conv | Linear, norm: nn.Module | None, *, residual: bool, dropout: float, seed: int
    ) -> None:
        super().__init__(place, dropout=dropout, seed=seed)
        self.update, self.norm, self.residual = update, norm, residual

    def forward(self, state: State, view: GraphView) -> State:
        (z,), row_map = state, self.row_map(view.step)
        out: Tensor
        if isinstance(self.update, Conv):
            out = self.update(z, view, self.place, row_map)
        else:
            out = self.update(row_map(z, view.ids))
        if self.norm is None:
            return (out,)
        out = normalise(self.norm, out, view)
        if self.residual and isinstance(z, Tensor) and out.shape == z.shape:
            out = out + z
        return (out,)


def make_norm(name: str, width: int) -> nn.Module:
    norms: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": BatchNorm, "none": nn.Identity}
    return norms[name](width)


def normalise(norm: nn.Module, x: Tensor, view: GraphView) -> Tensor:
    out: Tensor = norm(x, view) if isinstance(norm, BatchNorm) else norm(x)
    return out
