"""MixGCN: the update by rows, the aggregation by columns, equal to one process (arXiv:2501.01951)."""

import torch

from fullgraph.errors import InputError
from fullgraph.placement import Mixture
from fullgraph.recipes.base import Recipe

ROLES = ("sparse", "dense", "both")


def mixgcn(blocks: int = 1, roles: str = "", devices: str = "") -> Recipe:
    """Exact training without halos: a machine holds the whole structure, and ranks swap row for column blocks.

    blocks: runs of rows, one of which is aggregated while the one before crosses and is updated. roles: what each rank
    does, such as sparse,dense,dense or both,both. devices: where, such as cpu,cuda:0,cuda:1; cpu+cuda:0 is a rank that
    aggregates on the first and updates on the second.
    """
    if blocks < 1:
        raise InputError(f"blocks={blocks}: at least 1")
    chosen, places = _roles(roles), [_devices(text) for text in devices.split(",")] if devices else []
    empty = [str(rank) for rank, role in enumerate(chosen) if role == "sparse"]
    cut = ({"blocks": blocks} if blocks > 1 else {}) | ({"empty": ",".join(empty)} if empty else {})
    return Recipe(
        name="mixgcn",
        options={"blocks": blocks, "roles": roles, "devices": devices},
        placement=Mixture,
        layout={"blocks": blocks, "roles": chosen, "aggregate_on": tuple(sparse for sparse, _ in places)},
        partitioner="banded" if cut else "contiguous",
        partitioner_options=cut,
        devices=tuple(dense for _, dense in places),
    )


def _roles(text: str) -> tuple[str, ...]:
    roles = tuple(text.split(",")) if text else ()
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise InputError(f"role {unknown[0]!r} is unknown; known: {', '.join(ROLES)}")
    for needed, work in (("sparse", "aggregate"), ("dense", "update")):
        if roles and not {needed, "both"} & set(roles):
            raise InputError(f"roles={text}: no rank to {work}; make one {needed} or both")
    return roles


def _devices(text: str) -> tuple[str, str]:
    """Of a rank's sparse and of its dense work."""
    try:
        names = [str(torch.device(name)) for name in text.split("+")]
    except RuntimeError as error:
        raise InputError(f"device {text!r} is unknown; write cpu, cuda:0, or both as cpu+cuda:0") from error
    if len(names) > 2 or not all(name == "cpu" or name.startswith("cuda:") for name in names):
        raise InputError(f"device {text!r} is unknown; write cpu, cuda:0, or both as cpu+cuda:0")
    return names[0], names[-1]
