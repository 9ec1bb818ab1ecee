"""Models of a third search, on real graphs: they differed on several ranks, failed, or were refused without need."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from tests.own_model.mixing import HIDDEN, Base, between

# Exact


@between
def vector_times_rows(self, h, x, e):
    weight = torch.softmax(h[:, 0], 0)
    many = torch.bmm(h.t()[None], h[None]).squeeze() + torch.einsum("bnd,bne->bde", h[None], h[None]).squeeze(0)
    return h - weight @ h - torch.tensordot(weight, h, dims=1) + many.mean(0) / x.size(0) + torch.vdot(h[:, 0], h[:, 1])


@between
def largest_singular_value(self, h, x, e):
    v = torch.ones(HIDDEN, dtype=h.dtype)
    with torch.no_grad():
        for _ in range(5):
            u = F.normalize(h @ v, dim=0)
            v = F.normalize(h.t() @ u, dim=0)
    return h / (u @ h @ v)


@between
def numbers_of_rows(self, h, x, e):
    nested = torch.tensor([[x.size(0)], [2]]).to(h.dtype).log().sum()
    return h * nested * x.size(0).bit_length() * 0.1 / x.size(0).real


@between
def means_of_float16(self, h, x, e):
    """Sums of 40 rows of 6,000 exceed float16."""
    large = (h.detach() * 0 + 6000).half()
    moments = large.mean(0) + large.std(0) + (large / 100).square().mean() + large.softmax(0).sum(0)
    return h * (moments + large.norm(dim=0) * 0.01 + large.logsumexp(0)).to(h.dtype) * 1e-4


@between
def complex_numbers(self, h, x, e):
    z = torch.complex(h[:, :4], h[:, 4:])
    z = (z - z.mean(0)) * torch.exp(1j * z.angle().mean())
    gram = (z.mH @ z / x.size(0)).abs().mean(0) + torch.cov(z.T).abs().mean(0)
    lengths = z.norm(dim=0) + torch.linalg.vector_norm(z) + z.std(0) + z.var() + z.abs().max()
    return torch.cat([z.real, z.imag], 1) + (gram + lengths).repeat(2) * 0.1


class Constants(Base):
    """Layers of zeros and ones, the initial rows of virtual nodes."""

    def made(self):
        self.lin, self.norm, self.cell = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.GRUCell(HIDDEN, HIDDEN)
        self.conv, self.mix = nn.Conv1d(1, 2, 3, padding=1), nn.MultiheadAttention(HIDDEN, 2, batch_first=True)
        self.table = nn.Embedding(1, HIDDEN)

    def between(self, h, x, e):
        one = torch.ones(1, HIDDEN, dtype=h.dtype)
        virtual = self.norm(self.lin(h.new_zeros(1, HIDDEN))) + self.table(torch.zeros(1).long())
        virtual = self.cell(h.mean(0, keepdim=True), virtual) + self.mix(one[None], one[None], one[None])[0][0]
        if torch.zeros(1).item():
            return h
        spectrum = torch.fft.rfft(one).abs() + torch.view_as_complex(torch.zeros(5, 2, dtype=h.dtype)).abs()
        return h + virtual + self.conv(one[None]).mean() + spectrum.mean() + torch.cdist(one, one).mean()


@between
def counted_by_class(self, h, x, e):
    best = h.argmax(1)
    counts = torch.bincount(best, minlength=HIDDEN) + torch.bincount(best, h[:, 0].detach(), HIDDEN)
    chosen = torch.isin(best, torch.tensor([1, 2])).to(h.dtype)[:, None]
    return h * (1 + counts[best, None] / x.size(0)) + chosen


class Remembered(Base):
    """A value computed from x is kept as long as x is the same."""

    known = None

    def between(self, h, x, e):
        if self.known is None or not torch.equal(self.known[0], x):
            self.known = x, x.mean()
        return h - self.known[1]


@between
def losses_of_rows(self, h, x, e):
    other = h.roll(1, 1).detach()
    pairs = F.mse_loss(h, other, reduction="none") + F.binary_cross_entropy_with_logits(
        h, other.sigmoid(), reduction="none"
    )
    return h * (1 + pairs.mean() + F.cross_entropy(h, h.argmax(1), reduction="none").mean())


@between
def gradients_changed_row_by_row(self, h, x, e):
    if h.requires_grad:
        h = h * 1
        h.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3) / (1 + grad.norm(dim=1, keepdim=True)))
    return h


@between
def special_functions(self, h, x, e):
    return h - torch.special.logsumexp(h, 0) + torch.special.softmax(h, 0) + torch.special.log_softmax(h, 0) * 0.1


class Quantiles(Base):
    """Some nodes have no in-neighbours; a rank's first one may be among them."""

    def made(self):
        self.median = pyg.SAGEConv(HIDDEN, HIDDEN, aggr="median")
        self.quantile = pyg.SimpleConv(aggr=pyg.QuantileAggregation([0.2, 0.7], fill_value=0.5))

    def between(self, h, x, e):
        kept = e[:, x[e[1], 0] < 0.5]
        return self.median(h, kept) + self.quantile(h, kept).view(-1, 2, HIDDEN).mean(1)


@between
def edges_turned_by_an_index(self, h, x, e):
    return self.first(x, e[[1, 0]])


@between
def likeness_to_the_mean(self, h, x, e):
    """Contrastive losses compare rows with a summary of the graph."""
    return h * F.cosine_similarity(h, h.mean(0, keepdim=True))[:, None] + F.cosine_similarity(h.sum(0), h, 1)[:, None]


@between
def a_mean_for_every_row(self, h, x, e):
    """An expanded row is no table by position, also where it meets rows after another call."""
    mean = h.mean(0).expand_as(h)
    near = F.cosine_similarity(h, mean).unsqueeze(1)
    return F.bilinear(h, mean, h.new_ones(HIDDEN, HIDDEN, HIDDEN)) + near * mean.norm(dim=1, keepdim=True)


RIGHT = {
    kind.__name__: kind
    for kind in (
        edges_turned_by_an_index,
        vector_times_rows, largest_singular_value, numbers_of_rows, means_of_float16, complex_numbers, Constants,
        counted_by_class, Remembered, Quantiles, losses_of_rows, gradients_changed_row_by_row, special_functions,
        likeness_to_the_mean, a_mean_for_every_row,
    )
}  # fmt: skip


# Refused


@between
def root_of_a_number_of_rows(self, h, x, e):
    return h * math.isqrt(x.size(0))


@between
def divisor_of_a_number_of_rows(self, h, x, e):
    return h * math.gcd(x.size(0), 12)


@between
def gradient_of_a_weight(self, h, x, e):
    if not torch.is_grad_enabled():
        return h
    (grad,) = torch.autograd.grad(h.square().mean(), self.first.lin_l.weight, create_graph=True)
    return h * (1 + grad.norm())


@between
def edges_turned_by_a_selection(self, h, x, e):
    return self.first(x, e.index_select(0, torch.tensor([1, 0])))


class ByFrequency(Base):
    def made(self):
        self.table = nn.Embedding(5, HIDDEN, scale_grad_by_freq=True)

    def between(self, h, x, e):
        return h + self.table((x[:, 0] * 10).long().abs() % 5)


class BagByFrequency(Base):
    def made(self):
        self.table = nn.EmbeddingBag(5, HIDDEN, scale_grad_by_freq=True)

    def between(self, h, x, e):
        return h + self.table((x[:, :2] * 10).long().abs() % 5)


class SparseTable(Base):
    def made(self):
        self.table = nn.Embedding(5, HIDDEN, sparse=True)

    def between(self, h, x, e):
        return h + self.table((x[:, 0] * 10).long().abs() % 5)


class SparseRows(Base):
    def made(self):
        self.table = nn.Parameter(torch.ones(5, HIDDEN))

    def between(self, h, x, e):
        return h + F.embedding((x[:, 0] * 10).long().abs() % 5, self.table, sparse=True)


class InnerOptimum(Base):
    def made(self):
        self.layer = pyg.SimpleConv(aggr=pyg.EquilibriumAggregation(HIDDEN, HIDDEN, [4]))

    def between(self, h, x, e):
        return self.layer(h, e)


@between
def mean_of_a_loss(self, h, x, e):
    return h * (1 + F.mse_loss(h, h.roll(1, 1)))


def hooked(change):
    @between
    def model(self, h, x, e):
        h, late = h * 1, self.calls > 3
        if h.requires_grad:
            h.register_hook(lambda grad: change(grad) if late else grad)
        return h

    return model


class gradient_scaled_later(hooked(lambda grad: grad / grad.norm())):
    pass


class gradient_centred_later(hooked(lambda grad: grad - grad.mean(0))):
    pass


class gradient_of_other_rows_later(hooked(lambda grad: grad[:3])):
    pass


REFUSED = {
    root_of_a_number_of_rows: "a plain number of the rows of one rank",
    divisor_of_a_number_of_rows: "a plain number of the rows of one rank",
    gradient_of_a_weight: "grad inside of the model computes gradients of rows",
    edges_turned_by_a_selection: r"turn edges around with edge_index\.flip",
    ByFrequency: "leave out scale_grad_by_freq",
    BagByFrequency: "leave out scale_grad_by_freq",
    SparseTable: r"the layer Embedding \(table\) gives sparse gradients",
    SparseRows: "embedding gives sparse gradients|sparse tensors",
    InnerOptimum: "an aggregation by gradients of a mean over all nodes",
    mean_of_a_loss: "mse_loss takes a mean or sum over rows of nodes; use reduction='none'",
}


class mean_in_the_place_of_a_weight(Base):
    """The same call as in earlier steps, except for the origin of its second argument."""

    def made(self):
        self.shift = nn.Parameter(torch.zeros(HIDDEN))

    def between(self, h, x, e):
        shift = self.shift
        if self.calls > 3:
            with torch._C.DisableTorchFunction():
                shift = h.mean(0)
        return h - shift


OTHER_ROWS = r"mixing_again\.py:\d+: a hook of a tensor mixes gradients of different rows"
LATER = dict.fromkeys((gradient_scaled_later, gradient_centred_later, gradient_of_other_rows_later), OTHER_ROWS)
LATE = {
    type(
        f"late_{kind.__name__}",
        (kind,),
        {"between": lambda self, h, x, e, kind=kind: kind.between(self, h, x, e) if self.calls > 3 else h},
    ): REFUSED[kind]
    for kind in (
        root_of_a_number_of_rows, divisor_of_a_number_of_rows, gradient_of_a_weight, edges_turned_by_a_selection,
        ByFrequency, BagByFrequency, SparseRows,
    )
} | {mean_in_the_place_of_a_weight: "made where rows cannot be followed"}  # fmt: skip
