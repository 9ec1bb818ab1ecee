"""Fewer rows between hosts: a row crosses once for all ranks of a host, and a sum has terms of all ranks of a host.

For each other host, one rank of the readers' host learns the edges from there, and chooses the rows that cross and
the rank that receives each of them first: one of its readers, all in turn. Each rank then asks the owners for the rows
that it receives first, and for its sums; and it asks other ranks of its host for the rows that they hand on. A sum is
sent by one of the ranks that have its terms, all in turn.

Legend: R matrix rows, h halo rows, H rows and sums that this rank reads, c parts of them by owner, e entries.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.ops.transpose import indptr_of
from fullgraph.partition.cover import cover_columns
from fullgraph.placement.holding.cover import divided
from fullgraph.placement.holding.live import LayerRows
from fullgraph.plan import CoverRoute, HaloRoute, HostRoutes
from fullgraph.plan.cover import largest
from fullgraph.transport import Hosts, Key, Transport, exchanged

SUMMED = -1  # instead of a rank: a halo row that is only in sums
LABELS = 5  # numbers of a part of a row or sum: the rank that it goes to, its place there, rows of the sum, id, entries


def by_host(rows: LayerRows, hosts: Hosts, sums: torch.dtype | None, transport: Transport, name: str) -> LayerRows:
    """The same layer with a halo by host. sums: the type of factors, if sums of rows may cross; None: only rows."""
    asks, gate_h, rows = _wanted(rows, hosts, sums, transport, name)
    wants = _Wants.of(rows, asks, gate_h, hosts, transport.rank)
    routes = _routes(rows, wants, transport, name)
    device, number_H = rows.halo_ids.device, wants.number_H
    halo_ids = torch.empty_like(wants.id_H).index_copy_(0, number_H, wants.id_H)
    return replace(
        rows,
        halo_ids=halo_ids.to(device),
        route=routes.across,
        matrices=rows.matrices.renumbered(number_H.to(device)),
        cover=None if sums is None else routes.own,
        by_host=routes,
    )


def _wanted(
    rows: LayerRows, hosts: Hosts, sums: torch.dtype | None, transport: Transport, name: str
) -> tuple[Adjacency, Tensor, LayerRows]:
    """The matrix [H, h] of the rows and sums that this rank reads; by halo row, the rank that receives it first, or
    SUMMED; and the layer, with a matrix that reads these.
    """
    me, counts = transport.rank, rows.route.recv_counts
    device, outer = rows.halo_ids.device, rows.matrices.outer.to(device="cpu")
    owner_h = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    host_h = torch.tensor(hosts)[owner_h]
    gate_h = _gates(rows, outer.structure if sums is not None else None, host_h, hosts, transport, name)
    near_h = host_h == hosts[me]
    if sums is None:
        gate_h[near_h] = me
        h = len(owner_h)
        return Adjacency(Structure(torch.arange(h + 1), torch.arange(h).int(), h)), gate_h, rows
    near = tuple(count if hosts[peer] == hosts[me] else 0 for peer, count in enumerate(counts))
    s = outer.structure
    kept_e = near_h[s.indices.long()]
    indptr = torch.nn.functional.pad(kept_e.cumsum(0), (1, 0))[s.indptr]
    number_h = near_h.cumsum(0) - 1
    alone = cover_columns(indptr.numpy(), number_h[s.indices[kept_e].long()].int().numpy(), near)
    gate_h[near_h] = torch.where(torch.from_numpy(alone), me, SUMMED)
    # Terms of one sum are of one host, or of one rank of this host.
    group_h = torch.where(near_h, owner_h, len(counts) + host_h)
    new, asks, _ = divided(outer, gate_h != SUMMED, group_h, sums)
    return asks, gate_h, replace(rows, matrices=replace(rows.matrices, outer=new.to(device=device)))


def _gates(
    rows: LayerRows, edges: Structure | None, host_h: Tensor, hosts: Hosts, transport: Transport, name: str
) -> Tensor:
    """By halo row of another host, the rank that receives it first, or SUMMED. edges: into this rank's rows, if sums
    of rows may cross.
    """
    me, halo_ids = transport.rank, rows.halo_ids.cpu()
    mine = [rank for rank, host in enumerate(hosts) if host == hosts[me]]
    others = sorted(set(hosts) - {hosts[me]})
    chooser = {host: mine[turn % len(mine)] for turn, host in enumerate(others)}
    told = dict[int, list[Tensor]]()
    for host in others:
        of_host = host_h == host
        if edges is None:
            pairs = torch.empty(0, dtype=torch.int64)
        else:
            kept = of_host[edges.indices.long()]
            pairs = torch.cat([(of_host.cumsum(0) - 1)[edges.indices[kept].long()], edges.rows[kept]])
        ids = halo_ids[of_host]
        message = torch.cat([torch.tensor([host, len(ids), len(pairs)]), ids, pairs])
        told.setdefault(chooser[host], []).append(message)
    asked = exchanged({peer: torch.cat(of) for peer, of in told.items()}, torch.int64, transport, f"{name} edges")
    answers = {peer: list[Tensor]() for peer in asked}
    for host in others:
        if chooser[host] == me:
            found = {peer: _first_of(message, host) for peer, message in asked.items()}
            for peer, gates in _chosen(found, sums=edges is not None).items():
                answers[peer].append(gates)
    came = exchanged({peer: torch.cat(of) for peer, of in answers.items()}, torch.int64, transport, f"{name} gates")
    gate_h = torch.full_like(halo_ids, SUMMED)
    for host in others:
        of_host, peer = (host_h == host).nonzero().flatten(), chooser[host]
        if len(of_host):
            gate_h[of_host], came[peer] = came[peer][: len(of_host)], came[peer][len(of_host) :]
    return gate_h


def _first_of(message: Tensor, host: int) -> tuple[Tensor, Tensor]:
    """What a rank told about one host: ids of halo rows, and edges [2, E] as (number among them, target row)."""
    while int(message[0]) != host:
        message = message[3 + int(message[1]) + int(message[2]) :]
    ids, pairs = message[3:].split([int(message[1]), len(message) - 3 - int(message[1])])
    return ids, pairs[: int(message[2])].view(2, -1)


def _chosen(found: dict[int, tuple[Tensor, Tensor]], *, sums: bool) -> dict[int, Tensor]:
    """By reader: the rank that receives each of its halo rows first, or SUMMED."""
    peers, read = list(found), [ids for ids, _ in found.values()]
    unique, place = torch.unique(torch.cat(read), return_inverse=True)
    alone = np.ones(len(unique), np.bool_)
    places = place.split([len(ids) for ids in read])
    if sums:
        columns, targets, first = [], [], 0
        for of_reader, (_, pairs) in zip(places, found.values(), strict=True):
            columns.append(of_reader[pairs[0]])
            targets.append(first + pairs[1])
            first += int(pairs[1].max()) + 1 if pairs.shape[1] else 0
        rows, column = torch.cat(targets), torch.cat(columns)  # rows ascend
        indptr = indptr_of(torch.bincount(rows, minlength=first))
        alone = cover_columns(indptr.numpy(), column.int().numpy(), (len(unique),))
    reader = torch.repeat_interleave(torch.arange(len(peers)), torch.tensor([len(ids) for ids in read]))
    by_row = torch.argsort(place, stable=True)  # readers of a row ascend
    num_readers = torch.bincount(place, minlength=len(unique))
    turn = torch.arange(len(unique)) % num_readers.clamp(min=1)
    gate = torch.tensor(peers)[reader[by_row[indptr_of(num_readers)[:-1] + turn]]]
    gate[~torch.from_numpy(alone)] = SUMMED
    return {peer: gate[of_reader] for peer, of_reader in zip(peers, places, strict=True)}


@dataclass(frozen=True, eq=False)
class _Wants:
    """What a rank reads, in the order of its halo: first what owners send, then rows that other ranks hand on."""

    number_H: Tensor  # place in the halo
    id_H: Tensor
    came: tuple[int, ...]  # rows and sums by sender
    handed: dict[int, Tensor]  # ids by the rank that hands them on
    single: Tensor  # places of rows that are no sums, among those that came
    parts: dict[int, Tensor]  # LABELS numbers of each part, and then its entries, by owner
    weights: dict[int, Tensor]  # of entries, by owner
    scale: torch.dtype | None  # of factors; None: no sums

    @classmethod
    def of(cls, rows: LayerRows, asks: Adjacency, gate_h: Tensor, hosts: Hosts, me: int) -> "_Wants":
        counts, size, s = rows.route.recv_counts, len(hosts), asks.structure
        owner_h = torch.repeat_interleave(torch.arange(size), torch.tensor(counts))
        item_e, column_e = s.rows, s.indices.long()
        pair_c, part_e, entries_c = torch.unique_consecutive(
            item_e * size + owner_h[column_e], return_inverse=True, return_counts=True
        )
        item_c, owner_c = pair_c // size, pair_c % size
        parts_H = torch.bincount(item_c, minlength=s.num_rows)
        items = torch.arange(s.num_rows)
        sender_H = owner_c[indptr_of(parts_H)[:-1] + items % parts_H.clamp(min=1)]
        gate_H = gate_h[column_e[s.indptr[:-1]]]
        late_H = (gate_H != SUMMED) & (gate_H != me)  # handed on
        from_H = torch.where(late_H, gate_H, sender_H)
        order_H = torch.argsort(late_H * size + from_H, stable=True)
        number_H = torch.empty_like(order_H).index_copy_(0, order_H, items)
        came = torch.bincount(from_H[~late_H], minlength=size)
        slot_H = number_H - indptr_of(came)[:-1][from_H]
        id_H = largest(s, rows.halo_ids.cpu())
        handed = order_H[int(came.sum()) :]
        terms_H = s.indptr.diff()

        first_h = torch.tensor(list(accumulate(counts, initial=0)))
        parts, weights = dict[int, Tensor](), dict[int, Tensor]()
        order_c = torch.argsort(number_H[item_c], stable=True)
        order_c = order_c[~late_H[item_c[order_c]]]
        place_c = torch.full_like(item_c, -1).index_copy_(0, order_c, torch.arange(len(order_c)))
        for owner in owner_c[order_c].unique().tolist():
            chosen = order_c[owner_c[order_c] == owner]
            item = item_c[chosen]
            labels = torch.stack([sender_H[item], slot_H[item], terms_H[item], id_H[item], entries_c[chosen]], 1)
            of_owner = ((place_c[part_e] >= 0) & (owner_c[part_e] == owner)).nonzero().flatten()
            of_owner = of_owner[torch.argsort(place_c[part_e[of_owner]], stable=True)]
            columns = column_e[of_owner] - first_h[owner]
            parts[owner] = torch.cat([torch.tensor([len(chosen)]), labels.flatten(), columns])
            if asks.weight is not None:
                weights[owner] = asks.weight[of_owner]
        return cls(
            number_H=number_H,
            id_H=id_H,
            came=tuple(came.tolist()),
            handed={g: id_H[handed[from_H[handed] == g]] for g in from_H[handed].unique().tolist()},
            single=number_H[(gate_H == me).nonzero().flatten()],
            parts=parts,
            weights=weights,
            scale=None if asks.row_scale is None else asks.row_scale.dtype,
        )


def _routes(rows: LayerRows, wants: _Wants, transport: Transport, name: str) -> HostRoutes:
    """The routes of this rank, after every reader has told the owners what it wants."""
    me, size, device = transport.rank, transport.size, rows.halo_ids.device
    nothing = torch.empty(0, dtype=torch.int64)
    asked = exchanged(wants.parts, torch.int64, transport, f"{name} parts")
    kind = torch.float32 if wants.scale is None else wants.scale
    weights = exchanged(wants.weights, kind, transport, f"{name} weights")
    readers, labels, columns = [nothing], [nothing.view(0, LABELS)], [nothing]
    slices = rows.route.send_slices()
    for reader, message in asked.items():
        end = 1 + int(message[0]) * LABELS
        labels.append(message[1:end].view(-1, LABELS))
        readers.append(torch.full((len(labels[-1]),), reader))
        columns.append(slices[reader].cpu()[message[end:]])
    sender_c, slot_c, terms_c, id_c, entries_c = torch.cat(labels).unbind(1)
    reader_c = torch.cat(readers)

    crosses_c = sender_c == me
    order_c = torch.argsort(torch.where(crosses_c, size, sender_c), stable=True)
    counts_p = torch.bincount(sender_c[~crosses_c], minlength=size)
    counts_s = torch.bincount(reader_c[crosses_c], minlength=size)
    matrix = Adjacency(
        Structure(indptr_of(entries_c), torch.cat(columns).int(), rows.sources),
        torch.cat([*weights.values()]) if weights else None,
        None if wants.scale is None else 1 / terms_c.to(wants.scale),
    ).take(order_c)
    p, s = int(counts_p.sum()), int(counts_s.sum())
    alone = tuple(p + s if rank == me else 0 for rank in range(size))
    own = CoverRoute(HaloRoute(torch.arange(p + s), alone, alone, p + s).to(device), matrix.to(device=device))

    places_p = torch.stack([reader_c, slot_c], 1)[order_c[:p]].split(counts_p.tolist())
    told = {g: of.flatten() for g, of in enumerate(places_p) if len(of)}
    first_s = indptr_of(counts_s)
    added = {
        peer: first_s[of.view(-1, 2)[:, 0]] + of.view(-1, 2)[:, 1]
        for peer, of in exchanged(told, torch.int64, transport, f"{name} terms").items()
    }
    places = torch.cat([nothing, *added.values()]).unique()
    added = {peer: torch.searchsorted(places, rows) for peer, rows in added.items()}
    id_h = torch.empty_like(wants.id_H).index_copy_(0, wants.number_H, wants.id_H)
    single = wants.single[torch.argsort(id_h[wants.single])]
    handed = {
        peer: single[torch.searchsorted(id_h[single], ids)]
        for peer, ids in exchanged(wants.handed, torch.int64, transport, f"{name} handed").items()
    }

    def within(rows: dict[int, Tensor], come: tuple[int, ...], count: int) -> HaloRoute:
        sent = tuple(len(rows.get(peer, nothing)) for peer in range(size))
        return HaloRoute(torch.cat([nothing, *rows.values()]), sent, come, count).to(device)

    used = torch.tensor([sum(map(len, added.values())), sum(map(len, handed.values()))])
    adds, hands = transport.all_reduce(Key(f"{name} routes", 0), used).wait().tolist()
    came = tuple(len(wants.handed.get(peer, nothing)) for peer in range(size))
    return HostRoutes(
        own=own,
        added=within(added, tuple(counts_p.tolist()), len(places)) if adds else None,
        places=places.to(device),
        across=HaloRoute(torch.arange(s), tuple(counts_s.tolist()), wants.came, s).to(device),
        handed=within(handed, came, sum(wants.came)) if hands else None,
        ids=id_c[order_c[p:]].to(device),
    )


def largest_of_hosts(routes: HostRoutes, values_n: Tensor, transport: Transport, name: str) -> Tensor:
    """One value [s] per row that crosses: the largest of its rows, on all ranks of the host."""
    terms: Tensor
    largest_s: Tensor
    terms, largest_s = routes.own.numbers_of(values_n).split(routes.counts)
    if routes.added is None:
        return largest_s
    parts = {peer: rows.cpu() for peer, rows in routes.added.T.pack(terms).items()}
    places = {peer: routes.places[rows] for peer, rows in routes.added.send_slices().items()}
    for peer, rows in exchanged(parts, values_n.dtype, transport, name + " of terms").items():
        largest_s = largest_s.scatter_reduce(0, places[peer], rows.to(largest_s.device), "amax")
    return largest_s
