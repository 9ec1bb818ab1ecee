"""Exchanges about halo rows before training.

Legend: n owned rows, h halo rows.
"""

import torch
from torch import Tensor

from fullgraph.codec import quartiles
from fullgraph.exchange import Clock, Wire
from fullgraph.plan import HaloRoute, Route
from fullgraph.transport import Key, Transport, gather_rows


def halo_of(route: Route, values: Tensor, transport: Transport, name: str) -> Tensor:
    """Fetch values of halo rows from the ranks that own them."""
    channel = Wire().build(name=name, route=route, transport=transport, clock=Clock())
    with torch.no_grad():
        return channel.end(channel.begin(values)[1])


def asked_of_owners(route: HaloRoute, wanted_h: Tensor, transport: Transport, name: str) -> dict[int, Tensor]:
    """By peer, in the route's order: which of its halo rows the peer wants."""
    wanted = route.T.pack(wanted_h.to(torch.uint8))
    incoming = {peer: count for peer, count in enumerate(route.send_counts) if count}
    asked = transport.begin(Key(name, 0), wanted, incoming).wait()
    return {peer: rows.to(wanted_h.device).bool() for peer, rows in asked.items()}


def told_owners(
    route: HaloRoute, values: dict[int, Tensor], kind: torch.dtype, transport: Transport, name: str
) -> dict[int, Tensor]:
    """By peer: the numbers of a type that a reader sends to the owner of its halo rows, who does not know how many."""
    sizes = {peer: torch.tensor([len(of_peer)]).view(torch.uint8) for peer, of_peer in values.items()}
    incoming = {peer: 8 for peer, count in enumerate(route.send_counts) if count}
    counts = transport.begin(Key(f"{name} sizes", 0), sizes, incoming).wait()
    incoming = {peer: int(count.cpu().view(torch.int64)) * kind.itemsize for peer, count in counts.items()}
    wires = {peer: of_peer.contiguous().view(torch.uint8) for peer, of_peer in values.items()}
    came = transport.begin(Key(name, 0), wires, incoming).wait()
    return {peer: came[peer].cpu().clone().view(kind) for peer in sorted(came)}


def narrowed(route: HaloRoute, keep_n: Tensor, read_h: Tensor, transport: Transport, name: str) -> HaloRoute:
    """The route that carries only the halo rows in `read_h`, to ranks that keep only the rows in `keep_n`."""
    asked = asked_of_owners(route, read_h, transport, name)
    sends = {peer: rows[asked[peer]] for peer, rows in route.send_slices().items()}
    number = torch.cumsum(keep_n, 0) - 1
    rows = torch.cat([number[sends[peer]] for peer in sorted(sends)]) if sends else route.send_rows[:0]
    reads = route.T.pack(read_h)
    size = range(len(route.send_counts))
    return HaloRoute(
        rows,
        tuple(len(sends[peer]) if peer in sends else 0 for peer in size),
        tuple(int(reads[peer].sum()) if peer in reads else 0 for peer in size),
        int(keep_n.sum()),
    )


def boundary_grades(degree_n: Tensor, route: HaloRoute, transport: Transport, name: str) -> Tensor:
    """The grade 0..3 of every owned row: its quarter by in-degree among the boundary nodes of all ranks."""
    read = route.send_rows.unique().cpu()
    return quartiles(degree_n, gather_rows(degree_n[read], transport, Key(name, 0)))
