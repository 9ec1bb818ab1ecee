"""A GCN, in one process:  python examples/gcn.py [GRAPH] [EPOCHS]"""

import sys

import torch
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

import fullgraph as fg


class GCN(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, hidden), GCNConv(hidden, classes)

    def forward(self, x, edge_index):
        x = F.dropout(x, 0.5, self.training)
        x = F.dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        return self.second(x, edge_index)


name, epochs = (*sys.argv[1:], *("demo", "100")[len(sys.argv) - 1 :])
torch.manual_seed(0)
graph = fg.load(name)
data = graph.to_pyg()
model = GCN(graph.num_features, 64, graph.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(int(epochs)):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
model.eval()
accuracy = (model(data.x, data.edge_index).argmax(1) == data.y)[data.test_mask].float().mean()
print(f"test accuracy {accuracy:.3f}")
