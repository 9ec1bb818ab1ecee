"""A decoder: the closer the rows of two nodes are, the more likely the nodes are an edge."""

import torch


class Distance(torch.nn.Module):
    """s = b - |W u - W v|^2; `width` is the number of columns of a row."""

    def __init__(self, width, out: int = 16):
        super().__init__()
        self.lin, self.bias = torch.nn.Linear(width, out, bias=False), torch.nn.Parameter(torch.ones(1))

    def forward(self, u, v):
        return self.bias - (self.lin(u) - self.lin(v)).square().sum(1)
