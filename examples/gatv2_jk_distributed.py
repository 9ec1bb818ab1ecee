"""A GATv2 with jumping knowledge:  torchrun --nproc-per-node 3 examples/gatv2_jk_distributed.py [GRAPH] [EPOCHS]"""

import sys

import torch
from torch.nn import functional as F
from torch_geometric.nn import BatchNorm, GATv2Conv, JumpingKnowledge

import fullgraph as fg


class Net(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, layers: int = 3) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(features, hidden)
        self.convs = torch.nn.ModuleList(GATv2Conv(hidden, hidden // 4, heads=4, dropout=0.2) for _ in range(layers))
        self.norms = torch.nn.ModuleList(BatchNorm(hidden) for _ in range(layers))
        self.drop, self.jump = torch.nn.Dropout(0.5), JumpingKnowledge("cat")
        self.head = torch.nn.Linear(layers * hidden, classes)

    def forward(self, x, edge_index):
        x, seen = self.drop(self.encoder(x)), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop(norm(conv(x, edge_index)).relu())
            seen.append(x)
        return self.head(self.jump(seen))


name, epochs = (*sys.argv[1:], *("demo", "100")[len(sys.argv) - 1 :])
torch.manual_seed(0)
graph = fg.load(name)
data = fg.open_shard(graph)
model = fg.distribute(Net(graph.num_features, 64, graph.num_classes), data, strategy="sylvie-s")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(epochs))
for _ in range(int(epochs)):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = fg.mean_loss(F.cross_entropy(out[data.train_mask], data.y[data.train_mask], reduction="none"), data)
    loss.backward()
    fg.sync_gradients(model)
    optimizer.step()
    scheduler.step()
model.eval()
accuracy = fg.evaluate(model)["test"]
print(f"test accuracy {accuracy:.3f}")
