"""Deep models: a dense encoder, convolutions of one width with residuals, a dense decoder.

The encoder is layer -1, so that graph layers count from 0.
"""

from torch import Tensor, nn

from fullgraph.nn.conv import GCN2Conv, GCNConv
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import Chain, Layer, State, make_norm, normalise
from fullgraph.nn.view import GraphView


class InitialResidual(Chain):
    """H_0 = relu(drop(X) W_in + b);  z_{l+1} = norm(conv_l(drop(relu(z_l)), H_0));  drop(relu(z_L)) W_out + b."""

    def __init__(
        self, encoder: Linear, convs: list[GCN2Conv], decoder: Linear, *, norm: str, dropout: float, seed: int
    ) -> None:
        super().__init__()
        norms = [make_norm(norm, conv.out_width) for conv in convs]
        self.encoder, self.decoder = encoder, decoder
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList(norms)
        pairs = enumerate(zip(convs, norms, strict=True))
        self.blocks = (
            _First(-1, encoder, relu=False, dropout=dropout, seed=seed),
            *(_Recall(i, *pair, dropout=dropout, seed=seed) for i, pair in pairs),
            Layer(len(convs), decoder, dropout=dropout, seed=seed),
        )


class _First(Layer):
    """z <- update(drop(x));  the state also keeps relu(z) for later blocks."""

    def forward(self, state: State, view: GraphView) -> State:
        z = self.updated(state[0], view)
        return z, z.relu()


class _Recall(Layer):
    """z <- norm(conv(drop(relu(z)), H_0));  the state keeps H_0."""

    def forward(self, state: State, view: GraphView) -> State:
        z, first = state
        out = self.update(z, first, view, self.layer, self.row_map(view.step))
        return normalise(self.norm, out, view), first


class PreActivation(Chain):
    """h_0 = X W_in + b;  h_{l+1} = h_l + conv_l(drop(relu(norm(h_l))));  drop(relu(norm(h_L))) W_out + b."""

    def __init__(
        self, encoder: Linear, convs: list[GCNConv], decoder: Linear, *, norm: str, dropout: float, seed: int
    ) -> None:
        super().__init__()
        norms = [make_norm(norm, decoder.in_features) for _ in range(len(convs) + 1)]
        self.encoder, self.decoder = encoder, decoder
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList(norms)
        *before, last = norms
        pairs = enumerate(zip(convs, before, strict=True))
        self.blocks = (
            Layer(-1, encoder, relu=False, dropout=0.0, seed=seed),
            *(_NormFirst(i, *pair, residual=True, dropout=dropout, seed=seed) for i, pair in pairs),
            _NormFirst(len(convs), decoder, last, dropout=dropout, seed=seed),
        )


class _NormFirst(Layer):
    """h <- (h +) update(drop(relu(norm(h))))."""

    def forward(self, state: State, view: GraphView) -> State:
        (h,) = state
        assert isinstance(h, Tensor)
        out = self.updated(normalise(self.norm, h, view), view)
        return (h[: len(out)] + out if self.residual else out,)
