"""More models that mix rows of different nodes, from searches for gaps in the guard."""

import io
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric import utils
from torch_geometric.utils.num_nodes import maybe_num_nodes

from tests.own_model.mixing import CLASSES, HIDDEN, WIDTH, Base, between

# Exact


@between
def norms_of_every_order(self, h, x, e):
    inf = float("inf")
    vectors = [torch.norm(h, p, dim=0) for p in (0, 1, 3, inf)] + [torch.linalg.vector_norm(h, -inf, 0) + 1]
    wholes = [torch.norm(h, p) for p in (0, 1, 3, inf)] + [torch.linalg.norm(h), torch.norm(h), torch.norm(h, "fro")]
    matrices = [torch.linalg.norm(h, p) for p in (1, inf, -1, "fro")] + [torch.linalg.matrix_norm(h)]
    return h + sum(h / (1 + one) for one in vectors + wholes + matrices + [torch.linalg.norm(h, inf, dim=(0, 1))])


@between
def norm_of_zeros(self, h, x, e):
    return h + (h * 0).norm(dim=0) + (h * 0).std(0)


@between
def written_into_another(self, h, x, e):
    mean, total = torch.empty(HIDDEN, dtype=h.dtype), torch.empty(HIDDEN, dtype=h.dtype)
    with torch.no_grad():
        torch.mean(h, 0, out=mean)
        torch.sum(h, 0, out=total)
    return h - mean - total / x.size(0)


@between
def sums_by_groups_in_place(self, h, x, e):
    group = (x[:, 0] > 0).long()
    wide = group[:, None].expand(-1, HIDDEN)
    summed = torch.zeros(2, HIDDEN, dtype=h.dtype)
    for row in summed:
        row += 0.5
    summed.index_add_(0, group, h)
    summed[0] = 5
    summed.scatter_add_(0, wide, h)
    summed.scatter_add_(0, wide, 2 * h)
    summed.view(-1).add_(1)
    return h + summed.index_add(0, group, h)[group] / x.size(0)


@between
def pooled_by_a_batch(self, h, x, e):
    batch = x.new_zeros(x.size(0)).long()
    return h - pyg.global_mean_pool(h, batch)[batch]


@between
def other_means(self, h, x, e):
    least, most = torch.aminmax(h, dim=0)
    spread = h @ torch.cov(h.t()) + h @ torch.corrcoef(h.t())
    return spread + (h - least) / (most - least) - torch.nanmean(h, 0) + h * F.softmin(h, 0)


@between
def in_each_row(self, h, x, e):
    spectrum = torch.fft.irfft(torch.fft.rfft(h, dim=1), n=HIDDEN, dim=1)
    turned = torch.view_as_real(torch.view_as_complex(h.view(-1, 4, 2)) * 1j).flatten(1)
    return spectrum + turned + torch.renorm(h, 2, 0, 1.0)


class Bag(Base):
    def made(self):
        self.table = nn.EmbeddingBag(5, HIDDEN, mode="mean")

    def between(self, h, x, e):
        return h + self.table((x[:, :2] * 10).long().abs() % 5)


class Aggregations(Base):
    """Lists of aggregations, and aggregations that contain the user's modules."""

    def made(self):
        class Centred(nn.Module):
            def forward(self, h):
                return h - h.mean(0)

        several = pyg.SAGEConv(HIDDEN, HIDDEN, aggr=["mean", "max", "std"])
        deep = pyg.SAGEConv(HIDDEN, HIDDEN, aggr=pyg.aggr.DeepSetsAggregation(Centred(), Centred()))
        gated = pyg.SAGEConv(HIDDEN, HIDDEN, aggr=pyg.aggr.AttentionalAggregation(nn.Linear(HIDDEN, 1)))
        self.layers = nn.ModuleList([several, deep, gated])

    def between(self, h, x, e):
        return sum(layer(h, e) for layer in self.layers)


class Adapted(nn.Module):
    """A linear layer with another one beside it, as in LoRA."""

    def __init__(self, lin):
        super().__init__()
        self.lin, self.more = lin, nn.Linear(HIDDEN, HIDDEN)

    @property
    def weight(self):
        return self.lin.weight

    def forward(self, h):
        return self.lin(h) + self.more(h)


class ChangedLayers(Base):
    """Layers that differ from PyG's."""

    def made(self):
        hooked, adapted, normed = (pyg.GCNConv(HIDDEN, HIDDEN) for _ in range(3))
        hooked.lin.register_forward_hook(lambda module, given, out: out * 2)
        adapted.lin = Adapted(adapted.lin)
        nn.utils.parametrizations.weight_norm(normed.lin, "weight")
        attending, messages = pyg.GATConv(HIDDEN, HIDDEN), pyg.SAGEConv(HIDDEN, HIDDEN)
        attending.lin.register_forward_hook(lambda module, given, out: out - out.mean(0))
        messages.register_message_forward_hook(lambda module, given, out: out * 3)
        messages.aggr_module.register_forward_hook(lambda module, given, out: out + 1)
        messages.lin_l.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        self.layers = nn.ModuleList([hooked, adapted, normed, attending, messages])

    def between(self, h, x, e):
        return sum(layer(h, e) for layer in self.layers)


class PyGsOwn(Base):
    """PyG draws from Python's random for the name of a template, and for an unused loss."""

    def made(self):
        self.net = pyg.Sequential("x, e", [(pyg.GCNConv(WIDTH, HIDDEN), "x, e -> h"), (lambda h: h * 2, "h -> h")])
        self.attention = pyg.SuperGATConv(HIDDEN, HIDDEN)

    def between(self, h, x, e):
        return self.attention(h + self.net(x, e), e)


@between
def data_assigned(self, h, x, e):
    other = torch.zeros(1, dtype=h.dtype)
    other.data = h.detach()
    return h - other.mean(0)


@between
def edges_to_others(self, h, x, e):
    kept = e[0] != e[1]
    return self.first(x, e[:, kept])


@between
def rows_through_a_view(self, h, x, e):
    kept = torch.zeros(x.size(0), dtype=h.dtype)
    kept.view(-1).add_(h[:, 0].detach())
    return h - kept.sum()


@between
def one_way_of_each_edge(self, h, x, e):
    return self.first(x, e[:, e[0] < e[1]])


RIGHT = {
    kind.__name__: kind
    for kind in (
        one_way_of_each_edge,
        norms_of_every_order, norm_of_zeros, written_into_another, sums_by_groups_in_place, pooled_by_a_batch,
        other_means, in_each_row, Bag, Aggregations, ChangedLayers, PyGsOwn, data_assigned, edges_to_others,
        rows_through_a_view,
    )
}  # fmt: skip


# Refused


@between
def nuclear_norm(self, h, x, e):
    return h / torch.norm(h, "nuc")


@between
def spectral_norm(self, h, x, e):
    return h / torch.linalg.norm(h, 2)


@between
def renormed_columns(self, h, x, e):
    return torch.renorm(h, 2, 1, 1.0)


@between
def rows_as_kernels(self, h, x, e):
    return h - F.conv1d(torch.ones(1, HIDDEN, 1, dtype=h.dtype), h.view(-1, HIDDEN, 1)).mean()


class BegunByPosition(Base):
    def made(self):
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def between(self, h, x, e):
        start = torch.linspace(0, 1, 4 * len(x), dtype=h.dtype).view(1, -1, 4)
        return h + self.rnn(h.view(-1, 2, 4), start)[0].flatten(1)


@between
def written_by_position(self, h, x, e):
    weight = torch.ones(maybe_num_nodes(e), dtype=h.dtype)
    weight[3:7] = 5
    return h * weight[:, None]


@between
def written_through_a_view(self, h, x, e):
    weight = torch.ones(maybe_num_nodes(e), 1, dtype=h.dtype)
    weight[:5].add_(1)
    return h * weight


class InOrder(Base):
    def made(self):
        self.layer = pyg.SAGEConv(HIDDEN, HIDDEN, aggr="lstm")

    def between(self, h, x, e):
        return self.layer(h, e)


@torch.jit.script
def scripted(h: torch.Tensor) -> torch.Tensor:
    return h.mean(0)


@between
def by_torchscript(self, h, x, e):
    return h - scripted(h)


@between
def by_a_parameter(self, h, x, e):
    return h - nn.Parameter(h.detach()).mean(0)


@between
def by_a_subclass(self, h, x, e):
    class Own(torch.Tensor):
        pass

    return h - h.detach().as_subclass(Own).mean(0).as_subclass(torch.Tensor)


@between
def by_set(self, h, x, e):
    other = torch.empty(0, dtype=h.dtype)
    other.set_(h.detach())
    return h - other.mean(0)


@between
def by_a_thread(self, h, x, e):
    found = []
    thread = threading.Thread(target=lambda: found.append(h.mean(0)))
    thread.start()
    thread.join()
    return h - found[0]


@between
def by_no_function(self, h, x, e):
    with torch._C.DisableTorchFunction():
        mean = h.mean(0)
    return h - mean if self.training else h


@between
def in_words(self, h, x, e):
    return h * len(str(h.detach()))


@between
def saved(self, h, x, e):
    torch.save(h.detach(), io.BytesIO())
    return h


@between
def drawn_by_a_distribution(self, h, x, e):
    return h * torch.distributions.Dirichlet(torch.ones(HIDDEN, dtype=h.dtype)).sample()


@between
def drawn_by_an_initialisation(self, h, x, e):
    return h * nn.init.normal_(torch.empty(HIDDEN, dtype=h.dtype))


@between
def nested(self, h, x, e):
    return h - torch.nested.nested_tensor([h]).to_padded_tensor(0.0)[0].mean(0)


@between
def refusal_that_is_caught(self, h, x, e):
    try:
        return h - h.median(0).values
    except Exception:
        return h


@between
def on_some_ranks_alone(self, h, x, e):
    return h - h.mean(0) if maybe_num_nodes(e) % 2 else h


REFUSED = {
    nuclear_norm: "a norm of order nuc",
    spectral_norm: "a norm of order 2 over rows of all ranks",
    renormed_columns: "renorm mixes rows of nodes",
    rows_as_kernels: "convolution takes rows of nodes for weights",
    BegunByPosition: "states that have a row per position",
    written_by_position: "a row per position|taken by their position",
    written_through_a_view: "a row per position|taken by their position",
    InOrder: "the layer LSTMAggregation .*depends on the order of messages",
    by_torchscript: "TorchScript is given rows of nodes",
    by_a_parameter: "Parameter is given rows of nodes",
    by_a_subclass: "Tensor.as_subclass is given rows of nodes",
    by_set: "Tensor.set_ is given rows of nodes",
    by_a_thread: "the model starts a thread",
    by_no_function: "made where rows cannot be followed",
    in_words: "rows of nodes leave torch .*__repr__",
    saved: "rows of nodes leave torch .*__reduce_ex__",
    nested: "nested tensor",
    drawn_by_a_distribution: "_sample_dirichlet draws random numbers",
    drawn_by_an_initialisation: "normal draws random numbers",
    refusal_that_is_caught: r"median along rows of nodes",
}
WAITING = {on_some_ranks_alone: r"mixing_more\.py|GATv2Conv \(layer second\)|on_some_ranks_alone"}


def late(kind):
    """The same model, which uses it only after the self-check's steps."""

    def between(self, h, x, e):
        return kind.between(self, h, x, e) if self.calls > 3 else h

    return type(f"late_{kind.__name__}", (kind,), {"between": between})


LATE = {
    late(kind): REFUSED[kind]
    for kind in (
        renormed_columns, rows_as_kernels, BegunByPosition, written_by_position,
        by_torchscript, by_a_parameter, by_set, by_a_thread, by_no_function, in_words,
        drawn_by_a_distribution, drawn_by_an_initialisation,
        refusal_that_is_caught,
    )
}  # fmt: skip


class Dropped(Base):
    """PyG's dropout of edges, by torch.rand."""

    def forward(self, x, edge_index):
        kept, _ = utils.dropout_edge(edge_index, 0.5, training=self.training)
        h = self.first(x, kept).tanh() * torch.rand(x.size(0), 1, dtype=x.dtype)
        return self.second(h, edge_index)[:, :CLASSES]
