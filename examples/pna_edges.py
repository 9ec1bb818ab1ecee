"""A PNA that reads edge features, in one process:  python examples/pna_edges.py [GRAPH] [EPOCHS]"""

import sys

import torch
from graphs import with_edge_features
from torch.nn import functional as F
from torch_geometric.nn import BatchNorm, PNAConv

import fullgraph as fg


class Net(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, degrees: torch.Tensor) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(features, hidden)
        kinds = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": degrees}
        self.convs = torch.nn.ModuleList(PNAConv(hidden, hidden, edge_dim=3, **kinds) for _ in range(2))
        self.norms = torch.nn.ModuleList(BatchNorm(hidden) for _ in range(2))
        self.head = torch.nn.Linear(hidden, classes)

    def forward(self, x, edge_index, edge_attr):
        x = self.encoder(F.dropout(x, 0.5, self.training))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.dropout(norm(conv(x, edge_index, edge_attr)).relu(), 0.5, self.training)
        return self.head(x)


name, epochs = (*sys.argv[1:], *("demo", "60")[len(sys.argv) - 1 :])
torch.manual_seed(0)
graph = with_edge_features(fg.load(name))
degrees = torch.bincount(torch.tensor(graph.indptr).diff())
data = graph.to_pyg()
model = Net(graph.num_features, 32, graph.num_classes, degrees)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for _ in range(int(epochs)):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.edge_attr)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
model.eval()
accuracy = (model(data.x, data.edge_index, data.edge_attr).argmax(1) == data.y)[data.test_mask].float().mean()
print(f"test accuracy {accuracy:.3f}")
