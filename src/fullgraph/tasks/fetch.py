"""Fetch the rows of any nodes from the ranks that own them.

Legend: n owned rows, h fetched rows, N nodes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.exchange import Clock, Wire
from fullgraph.plan import HaloRoute
from fullgraph.transport import Key, Transport, gather_rows, rank_table


@dataclass(frozen=True, eq=False)
class Fetch:
    """A route that brings rows of other ranks, and the place of each requested row behind the owned rows."""

    route: HaloRoute
    rows: Tensor  # indices into [owned rows, fetched rows]; shaped as the requested ids

    def places(self, owned: int) -> Tensor:
        """`rows` for a model that computed only the first `owned` of the owned rows."""
        return self.rows - (self.rows >= self.route.num_owned) * (self.route.num_owned - owned)

    def __call__(self, out_nD: Tensor, transport: Transport, clock: Clock, name: str) -> Tensor:
        """Owned rows followed by fetched rows, fresh and in full precision; gradients go back to the owners."""
        channel = Wire().build(name=name, route=self.route, transport=transport, clock=clock)
        out_nD, token = channel.begin(out_nD)
        return torch.cat([out_nD, channel.end(token)])


class Owners:
    """Knows the owner of every node; all ranks build it together. It takes 4 bytes per node."""

    def __init__(self, ids_n: Tensor, num_nodes: int, transport: Transport) -> None:
        self.transport, self.ids = transport, ids_n
        counts = rank_table(transport, Key("setup/owners", 0), len(ids_n), torch.int64)
        everyone = gather_rows(ids_n, transport, Key("setup/owned ids", 0))
        owner = torch.arange(transport.size, dtype=torch.int32).repeat_interleave(counts).to(ids_n.device)
        self.owner = torch.zeros(num_nodes, dtype=torch.int32, device=ids_n.device)
        self.owner[everyone] = owner
        self._sorted, self._order = ids_n.sort()

    def fetch(self, ids: Tensor, name: str, step: int = 0) -> Fetch:
        """Plan how the rows of these nodes reach this rank; all ranks call it together, each with its own ids."""
        transport, n = self.transport, len(self.ids)
        wanted, place = ids.reshape(-1).unique(return_inverse=True)
        owner = self.owner[wanted].long()
        mine = owner == transport.rank
        order = owner[~mine].argsort(stable=True)  # by owner, then by id
        remote = wanted[~mine][order]
        wants = torch.bincount(owner[~mine], minlength=transport.size).cpu()
        table = rank_table(transport, Key(f"{name}/counts", step), wants, torch.int64)
        asks, asked = table[transport.rank].tolist(), table[:, transport.rank].tolist()
        asked_ids = self._exchange(remote, asks, asked, Key(f"{name}/ids", step))
        row = torch.empty_like(wanted)
        row[mine] = self._rows(wanted[mine])
        fetched = torch.empty_like(remote)
        fetched[order] = torch.arange(n, n + len(remote), device=remote.device)
        row[~mine] = fetched
        return Fetch(HaloRoute(self._rows(asked_ids), tuple(asked), tuple(asks), n), row[place].view(ids.shape))

    def _exchange(self, ids: Tensor, asks: list[int], asked: list[int], key: Key) -> Tensor:
        """Exchange requests: return the ids that other ranks request from this rank, by rank."""
        parts = {peer: part for peer, part in enumerate(ids.split(asks)) if len(part)}
        outgoing = {peer: part.contiguous().view(torch.uint8) for peer, part in parts.items()}
        incoming = {peer: 8 * count for peer, count in enumerate(asked) if count}
        found = self.transport.begin(key, outgoing, incoming).wait()
        texts = [found[peer].to(ids.device).view(torch.int64) for peer in sorted(found)]
        return torch.cat([ids[:0], *texts])

    def _rows(self, ids: Tensor) -> Tensor:
        """Local rows of owned nodes."""
        return self._order[torch.searchsorted(self._sorted, ids)]
