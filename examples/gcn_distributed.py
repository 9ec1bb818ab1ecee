"""A GCN on many ranks:  torchrun --nproc-per-node 3 examples/gcn_distributed.py [GRAPH] [EPOCHS]"""

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
data = fg.open_shard(graph)
model = fg.distribute(GCN(graph.num_features, 64, graph.num_classes), data, strategy="pipegcn")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(int(epochs)):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = fg.mean_loss(F.cross_entropy(out[data.train_mask], data.y[data.train_mask], reduction="none"), data)
    loss.backward()
    fg.sync_gradients(model)
    optimizer.step()
model.eval()
accuracy = fg.evaluate(model)["test"]
print(f"test accuracy {accuracy:.3f}")
