"""Containers, hooks, parametrizations, checkpoints, forms of the output."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.checkpoint import checkpoint

from tests.own_model.users_layers import Stack


class Containers(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.parts = nn.ModuleDict({"in": gnn.SAGEConv(in_channels, 8), "mid": gnn.SAGEConv(8, 8)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.named = nn.ParameterDict({"skip": nn.Parameter(torch.zeros(1))})
        self.head = nn.Sequential(OrderedDict(drop=nn.Dropout(0.0), lin=nn.Linear(8, out_channels)))

    def forward(self, x, edge_index):
        x = self.parts["in"](x, edge_index).relu() * self.scales[0]
        x = self.parts["mid"](x, edge_index) * self.scales[1] + torch.sigmoid(self.named["skip"]) * x
        return self.head(x)


class Tied(nn.Module):
    """One convolution used three times; the decoder shares the encoder's weight."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.conv = nn.Linear(in_channels, 8), gnn.GCNConv(8, 8)
        self.back, self.out = nn.Linear(8, in_channels), nn.Linear(in_channels, out_channels)
        self.back.weight = nn.Parameter(self.enc.weight.detach().t().clone())
        self.again = self.enc

    def forward(self, x, edge_index):
        x = self.enc(x)
        for _ in range(3):
            x = self.conv(x, edge_index).relu()
        return self.out(self.again(self.back(x)) @ self.enc.weight)


class Parametrized(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.SAGEConv(in_channels, 16), gnn.SAGEConv(16, out_channels)
        parametrizations.weight_norm(self.conv1.lin_l)
        parametrizations.orthogonal(self.conv2.lin_r)
        self.lin = parametrizations.spectral_norm(nn.Linear(16, 16))

    def forward(self, x, edge_index):
        return self.conv2(self.lin(self.conv1(x, edge_index).relu()), edge_index)


class ParametrizedOldWay(Parametrized):
    def __init__(self, in_channels, out_channels):
        nn.Module.__init__(self)
        self.conv1, self.conv2 = gnn.GCNConv(in_channels, 16), gnn.GCNConv(16, out_channels)
        self.lin = spectral_norm(nn.Linear(16, 16))


class Hooked(nn.Module):
    """Activations are collected by hooks and joined at the end."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.convs = nn.ModuleList([gnn.GCNConv(in_channels, 8), gnn.GCNConv(8, 8)])
        self.lin, self.seen = nn.Linear(16, out_channels), []
        for conv in self.convs:
            conv.register_forward_hook(lambda module, inputs, out: self.seen.append(out))

    def forward(self, x, edge_index):
        self.seen.clear()
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.lin(torch.cat(self.seen, dim=1))


class HookedChange(Hooked):
    """A hook that changes the output, another one the input."""

    def __init__(self, in_channels, out_channels):
        nn.Module.__init__(self)
        self.conv1, self.conv2 = gnn.GATConv(in_channels, 8), gnn.GCNConv(8, out_channels)
        self.conv1.register_forward_hook(lambda module, inputs, out: F.normalize(out, dim=-1))
        self.conv2.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2, *inputs[1:]))

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class Exported(Stack):
    """Annotations of TorchScript that change nothing in Python."""

    @torch.jit.export
    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv1(x, edge_index).relu()

    @torch.jit.ignore
    def say(self, x: Tensor) -> None:
        assert x.dim() == 2

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.embed(x, edge_index)
        self.say(h)
        return self.conv2(h, edge_index)


class Checkpointed(Stack):
    def forward(self, x, edge_index):
        h = checkpoint(self.conv1, x, edge_index, use_reentrant=False)
        return self.conv2(h.relu(), edge_index)


class CheckpointedRows(Stack):
    """Only what works row by row is recomputed."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index)
        h = h + checkpoint(self.mlp, h, use_reentrant=False)
        return self.conv2(h, edge_index)


class Autocast(Stack):
    def forward(self, x, edge_index):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            return super().forward(x, edge_index)


class ByTraining(Stack):
    """Other paths in training and in evaluation."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index)
        if self.training:
            h = h + 0.1 * h.detach().std(dim=0)
            return self.conv2(h.relu(), edge_index)
        h = h.relu()
        return (self.conv2(h, edge_index) + self.conv2(h, edge_index)) / 2


class Structured(Stack):
    class Out(NamedTuple):
        logits: Tensor
        hidden: Tensor

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return self.Out(self.conv2(h, edge_index), h)


Pair = namedtuple("Pair", "hidden pred")


class PlainNamedTuple(Stack):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return Pair(h, self.conv2(h, edge_index))


@dataclass(frozen=True)
class Frozen:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    layers: int = 2


class FrozenDataclass(Stack):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return Frozen(self.conv2(h, edge_index), (x, h))


class LazyAll(nn.Module):
    def __init__(self, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.GATv2Conv((-1, -1), 8, heads=2), gnn.GCNConv(-1, 16)
        self.norm, self.lin = nn.LazyBatchNorm1d(), nn.LazyLinear(out_channels)
        self.pyg = gnn.Linear(-1, 16)

    def forward(self, x, edge_index):
        h = self.norm(self.conv1(x, edge_index)).relu()
        return self.lin(torch.cat([self.conv2(h, edge_index), self.pyg(x)], dim=-1))
