"""List the communication backends of this torch build."""

import torch.distributed as dist


def backends() -> dict[str, bool]:
    """Return whether gloo and nccl are built in."""
    available = dist.is_available()
    return {"gloo": available and dist.is_gloo_available(), "nccl": available and dist.is_nccl_available()}
