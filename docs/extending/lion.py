"""An optimizer: Lion, the sign of an average of gradients (Chen et al., arXiv:2302.06675)."""

import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            one, two = group["betas"]
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                kept = self.state[weight]  # this state is in the checkpoint
                if not kept:
                    kept["average"] = torch.zeros_like(weight)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * torch.sign(one * kept["average"] + (1 - one) * weight.grad))
                kept["average"].mul_(two).add_(weight.grad, alpha=1 - two)
