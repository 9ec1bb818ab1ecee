"""What this torch can send by."""

import torch.distributed as dist


def backends() -> dict[str, bool]:
    """Whether gloo and nccl are built in."""
    there = dist.is_available()
    return {"gloo": there and dist.is_gloo_available(), "nccl": there and dist.is_nccl_available()}
