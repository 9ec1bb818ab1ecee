"""One rank's rows of a graph: structure, features, labels, and the route to its halo.

Legend: n owned rows, h halo rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec import quartiles
from fullgraph.exchange import Clock, Wire
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.partition import Part
from fullgraph.placement.holding.adjacency import Arcs, fine
from fullgraph.plan import HaloRoute
from fullgraph.resources import require_memory
from fullgraph.transport import Key, Transport, gather_rows

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalGraph:
    """Owned rows and everything about them that this rank holds."""

    ids: Tensor  # [n]
    halo_ids: Tensor  # [h]
    arcs: Arcs
    route: HaloRoute
    x: Features
    y: Tensor
    masks: dict[str, Tensor]
    position: Tensor | None = None  # [n], in the order that rows are best worked on

    @classmethod
    def of(cls, part: Part, dtype: torch.dtype) -> "LocalGraph":
        x: Features
        if isinstance(part.x, Tensor):
            x = part.x.to(dtype)
        else:
            x = Adjacency(
                Structure(part.x.indptr, part.x.indices, part.x.num_cols), part.x.values.to(fine(dtype)), None, None
            )
        return cls(
            ids=part.ids,
            halo_ids=part.halo_ids,
            arcs=Arcs(part.indptr, part.indices, part.weight, len(part.halo_ids), part.undirected, part.attr),
            route=HaloRoute(part.send_rows, part.send_counts, part.recv_counts, len(part.ids)),
            x=x,
            y=part.y.to(fine(dtype)) if part.y.is_floating_point() else part.y,
            masks={"train": part.train_mask, "val": part.val_mask, "test": part.test_mask},
            position=part.position,
        )

    def with_dense_rows(self) -> "LocalGraph":
        """The same with dense input rows."""
        if isinstance(self.x, Tensor):
            return self
        s, values = self.x.structure, self.x.weight
        assert values is not None
        require_memory(s.num_rows * s.num_cols * values.element_size(), "making sparse input rows dense")
        x = torch.zeros(s.shape, dtype=values.dtype, device=values.device)
        return replace(self, x=x.index_put_((s.rows.long(), s.indices.long()), values, accumulate=True))

    def ordered(self) -> "LocalGraph":
        """The same rows by their places."""
        if self.position is None or bool((self.position.diff() > 0).all()):
            return self
        return self.reordered(torch.argsort(self.position))

    def reordered(self, order_n: Tensor) -> "LocalGraph":
        """The same rows in another order."""
        number_n = torch.empty_like(order_n)
        number_n[order_n] = torch.arange(len(order_n), device=order_n.device)
        return replace(
            self,
            ids=self.ids[order_n],
            arcs=self.arcs.reordered(order_n),
            route=replace(self.route, send_rows=number_n[self.route.send_rows]),
            x=_pick(self.x, order_n),
            y=self.y[order_n],
            masks={name: mask[order_n] for name, mask in self.masks.items()},
            position=None if self.position is None else self.position[order_n.cpu()],
        )

    def halo_of(self, values: Tensor, transport: Transport, name: str) -> Tensor:
        """Copies on halo rows of values that their owners hold."""
        channel = Wire().build(name=name, route=self.route, transport=transport, clock=Clock())
        with torch.no_grad():
            return channel.end(channel.begin(values)[1])

    def grades(self, transport: Transport, name: str) -> Tensor:
        """How much owned rows matter, 0..3: quarters by in-degree, among the nodes of all ranks that others read."""
        degree_n, read = self.arcs.indptr.diff().cpu(), self.route.send_rows.unique().cpu()
        boundary = gather_rows(degree_n[read], transport, Key(name, 0))
        return quartiles(degree_n, boundary).to(self.ids.device)

    def asked_of_owners(self, wanted_h: Tensor, transport: Transport, name: str) -> dict[int, Tensor]:
        """By peer: which of the rows that it holds as halo, in the route's order, it wants."""
        return _asked(self.route, wanted_h, transport, name)

    def isolated(self) -> "LocalGraph":
        """The same rows without the arcs from other parts, and so without a halo."""
        inner = self.arcs.keep(self.arcs.indices < len(self.ids))
        none = (0,) * len(self.route.send_counts)
        return replace(
            self,
            halo_ids=self.halo_ids[:0],
            arcs=Arcs(inner.indptr, inner.indices, inner.weight, 0, attr=inner.attr),
            route=HaloRoute(self.route.send_rows[:0], none, none, len(self.ids)),
        )

    def induced(self, transport: Transport) -> "LocalGraph":
        """The subgraph of training nodes, as this rank sees it."""
        keep_n = self.masks["train"]
        keep_h = self.halo_of(keep_n[:, None].to(torch.uint8), transport, "setup/training halo")[:, 0].bool()
        keep = torch.cat([keep_n, keep_h])
        arcs = self.arcs.keep(keep[self.arcs.indices.long()] & keep_n[self.arcs.targets()])
        # A halo row stays only where a training node reads it; its owner is told, so that it does not send the rest.
        read_h = torch.zeros_like(keep_h)
        read_h[arcs.indices[arcs.indices >= len(keep_n)].long() - len(keep_n)] = True
        route = narrowed(self.route, keep_n, read_h, transport, "setup/wanted halo")
        number = torch.cumsum(torch.cat([keep_n, read_h]), 0, dtype=torch.int32) - 1
        degrees = arcs.indptr.diff()[keep_n]
        indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        return LocalGraph(
            ids=self.ids[keep_n],
            halo_ids=self.halo_ids[read_h],
            arcs=Arcs(indptr, number[arcs.indices.long()], arcs.weight, int(read_h.sum()), attr=arcs.attr),
            route=route,
            x=_pick(self.x, keep_n.nonzero()[:, 0]),
            y=self.y[keep_n],
            masks={name: mask[keep_n] for name, mask in self.masks.items()},
            position=None if self.position is None else self.position[keep_n.cpu()],
        )


def moved(local: LocalGraph, device: torch.device, *, arcs: bool = False, host_rows: bool = False) -> LocalGraph:
    """Rows, labels and route on a device, and the arcs too if matrices are made there.

    host_rows: dense input rows stay, in memory that the device can read by itself.
    """
    if device.type == "cpu":
        return local
    x: Features
    if isinstance(local.x, Tensor):
        x = local.x.pin_memory() if host_rows else local.x.to(device)
    else:
        x = local.x.to(device=device)
    return replace(
        local,
        arcs=local.arcs.to(device) if arcs else local.arcs,
        ids=local.ids.to(device),
        halo_ids=local.halo_ids.to(device),
        route=local.route.to(device),
        x=x,
        y=local.y.to(device),
        masks={name: mask.to(device) for name, mask in local.masks.items()},
    )


def on_host(local: LocalGraph) -> LocalGraph:
    """The same where arcs were read, if they were moved; input rows stay where they are."""
    host = torch.device("cpu")
    if local.arcs.device == host:
        return local
    return replace(
        local,
        arcs=local.arcs.to(host),
        ids=local.ids.to(host),
        halo_ids=local.halo_ids.to(host),
        route=local.route.to(host),
        y=local.y.to(host),
        masks={name: mask.to(host) for name, mask in local.masks.items()},
    )


def _asked(route: HaloRoute, wanted_h: Tensor, transport: Transport, name: str) -> dict[int, Tensor]:
    wanted = route.T.pack(wanted_h.to(torch.uint8))
    incoming = {peer: count for peer, count in enumerate(route.send_counts) if count}
    asked = transport.begin(Key(name, 0), wanted, incoming).wait()
    return {peer: rows.to(wanted_h.device).bool() for peer, rows in asked.items()}


def narrowed(route: HaloRoute, keep_n: Tensor, read_h: Tensor, transport: Transport, name: str) -> HaloRoute:
    """The route that carries only the halo rows in `read_h`, to ranks that keep only the rows in `keep_n`."""
    asked = _asked(route, read_h, transport, name)
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


def _pick(x: Features, rows: Tensor) -> Features:
    if isinstance(x, Tensor):
        return x[rows.to(x.device)]
    entries = Arcs(x.structure.indptr, x.structure.indices, x.weight, 0).pick(rows)
    return Adjacency(Structure(entries.indptr, entries.indices, x.structure.num_cols), entries.weight, None, None)
