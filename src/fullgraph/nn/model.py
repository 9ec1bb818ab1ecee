"""The stack: graph convolutions, norms, residuals, dropout, trailing dense layers."""

from collections.abc import Callable

from torch import Tensor, nn

from fullgraph.nn.conv import Conv
from fullgraph.nn.linear import Linear
from fullgraph.nn.norm import BatchNorm
from fullgraph.nn.view import Features, GraphView, RowMap
from fullgraph.ops import dropout_key


class GNN(nn.Module):
    """x_{l+1} = norm(conv_l(drop(act(x_l)))) (+ x_l);  the last layer has neither norm nor residual."""

    def __init__(
        self, convs: list[Conv], linears: list[Linear], *, norm: str, dropout: float, residual: bool, seed: int
    ) -> None:
        super().__init__()
        self.convs, self.linears = nn.ModuleList(convs), nn.ModuleList(linears)
        self.dropout, self.residual, self.seed = dropout, residual, seed
        widths = [conv.out_width for conv in convs] + [linear.out_features for linear in linears]
        self.norms = nn.ModuleList(_norm(norm, width) for width in widths[:-1])

    def forward(self, x: Features, view: GraphView) -> Tensor:
        z = x
        for layer, module in enumerate([*self.convs, *self.linears]):
            row_map = self._row_map(layer, view.step)
            if layer < len(self.convs):
                out = module(z, view, layer, row_map)
            else:
                out = module(row_map(z, view.ids))
            if layer < len(self.norms):
                out = self._normalise(self.norms[layer], out, view)
                if self.residual and isinstance(z, Tensor) and layer and out.shape == z.shape:
                    out = out + z
            z = out
        assert isinstance(z, Tensor)
        return z

    def _row_map(self, layer: int, step: int) -> RowMap:
        p = self.dropout if self.training else 0.0
        return RowMap(relu=layer > 0, p=p, key=dropout_key(self.seed, step, layer) if p else 0)

    @staticmethod
    def _normalise(norm: nn.Module, x: Tensor, view: GraphView) -> Tensor:
        out: Tensor = norm(x, view) if isinstance(norm, BatchNorm) else norm(x)
        return out


def _norm(name: str, width: int) -> nn.Module:
    norms: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": BatchNorm, "none": nn.Identity}
    return norms[name](width)
