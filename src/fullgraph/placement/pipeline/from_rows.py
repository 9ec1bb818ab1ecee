"""The chunks of a pipeline from the rows of all ranks: nodes are numbered by way and chunk, and sent to their stages.

Legend: N nodes, w of them this way's own, n this rank's part; W ways, K chunks per way, V levels, S stages.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.codec import quartiles
from fullgraph.errors import InputError
from fullgraph.exchange import Clock, Sides, Wires
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.ops.transpose import indptr_of
from fullgraph.placement.holding.live import LEVELS, Live
from fullgraph.placement.holding.whole import share_whole
from fullgraph.placement.known import Known
from fullgraph.placement.pipeline.rows import Chunk, Numbering, Span, rows_kept
from fullgraph.placement.pipeline.setup import Setup
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.view import RankView
from fullgraph.plan import HaloRoute
from fullgraph.transport import Key, gather_rows, rank_table

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline


class SetupOfRows(Setup):
    """Numbers the nodes by way and chunk, and sends every rank the rows that its stage needs."""

    def __init__(
        self, placement: "Pipeline", view: RankView, graph: RankGraph, live: Live | None, wire: Wires, clock: Clock,
        aggregation: str,
    ) -> None:  # fmt: skip
        """graph: the view's graph, on the host. live: the rows of this part that each layer computes; None: all."""
        super().__init__(placement, view, wire, clock)
        self.graph, self.device = graph, placement.device
        if placement.chunks > view.num_nodes:
            raise InputError(f"chunks={placement.chunks}: more than the {view.num_nodes} nodes; choose fewer, or 0")
        everywhere = Live(torch.zeros(len(graph.rows.ids), dtype=LEVELS), (None,) * len(placement.hops))
        self.live = live or everywhere
        self.computed = self.live.computed
        self.numbers = self._numbers(graph)
        self.starts, self.trimmed = self.numbers.starts, self.numbers.trimmed
        self.span = Span(int(self.starts[self.way, 0]), int(self.starts[self.way, -1]))
        self.number_N = self._gather("numbers", self.numbers.number_n).long()  # in rank order
        self.ids_N = torch.empty_like(self.number_N).scatter_(0, self.number_N, self._gather("ids", graph.rows.ids))
        self.ids = self.ids_N.to(self.device)
        shared = share_whole(
            lambda whole: {"matrix": whole.inner, "arcs": whole.arcs},
            graph, self.numbers.number_n, view.num_nodes, self.transport, aggregation, placement.dtype, "stages",
        )  # fmt: skip
        matrix, arcs = shared["matrix"], shared["arcs"]
        assert isinstance(matrix, Adjacency)
        assert isinstance(arcs, Structure)
        self.matrix, self.arcs, self.attends = matrix, arcs, arcs.num_arcs > 0  # for all nodes

    @property
    def live_of_part(self) -> dict[int, int]:
        """For each layer that does not compute all rows: how many rows of this rank's part it computes."""
        level_n, hops = self.live.level_n, enumerate(self.live.hops)
        return {layer: int((level_n <= hop).sum()) for layer, hop in hops if hop is not None}

    def _numbers(self, graph: RankGraph) -> Numbering:
        """Number the nodes by way, chunk and level. A chunk has rows of all levels: a layer computes its first rows."""
        way, place = divmod(self.transport.rank, self.stages)
        first, last = place * self.slots // self.stages, (place + 1) * self.slots // self.stages
        if self.slots == 1:
            first, last = 0, 1
        pieces_n = self._pieces(graph, last - first)
        levels = 2 + max((hop for hop in self.live.hops if hop is not None), default=-1)
        group_n = (pieces_n + first) * levels + self.live.level_n
        mine = torch.bincount(group_n, minlength=self.slots * levels)
        by_rank = rank_table(self.transport, Key("setup/chunks", 0), mine, torch.int64)
        sizes = by_rank.view(self.ways, self.stages, -1).transpose(1, 2)
        begin = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)
        order = torch.argsort(group_n, stable=True)
        within = torch.arange(len(order)) - torch.searchsorted(group_n[order], group_n[order])
        number_n = torch.empty_like(order)
        number_n[order] = begin[way, group_n[order], place] + within
        ends = begin[:, :1, 0] + sizes.sum((1, 2))[:, None]
        return Numbering(
            number_n=number_n.int(),
            starts=torch.cat([begin[:, ::levels, 0], ends], 1),
            near=sizes.sum(2).view(self.ways, self.slots, levels).cumsum(2),
            hops=self.live.hops,
        )

    def _pieces(self, graph: RankGraph, count: int) -> Tensor:
        """The piece of every row of this part. It does not depend on the order of the rows."""
        inner, order_n = graph.arcs.keep(graph.arcs.indices < len(graph.rows.ids)), torch.argsort(graph.rows.ids)
        if bool((graph.rows.ids.diff() < 0).any()):
            inner = inner.reordered(order_n)
        with self.transport.away("cutting its part into chunks"):
            pieces = self.placement.pieces(inner.indptr.numpy(), inner.indices.numpy(), count)
        return torch.empty_like(order_n).scatter_(0, order_n, torch.from_numpy(pieces).long())

    def _gather(self, what: str, values: Tensor, to: int | None = None) -> Tensor:
        """All ranks' rows in rank order, on all ranks; with `to`, each way's rows on that stage of the way."""

        def wants(receiver: int, sender: int) -> bool:
            place = self.mesh.at(receiver)
            return to is None or (place["stage"] == to and place["way"] == sender // self.stages)

        return gather_rows(values.cpu(), self.transport, Key(f"setup/stage {what}", 0), wants)

    def _features(self, what: str, x: Features) -> Features:
        """The way's input rows in the order of their numbers, on the first stage."""
        order = self._order()
        if isinstance(x, Tensor):
            rows = self._gather(what, x, to=0)
            return rows[order] if self.stage == 0 else rows
        assert x.weight is not None
        indptr = indptr_of(self._gather(f"{what} counts", x.structure.indptr.diff(), to=0))
        columns = self._gather(f"{what} columns", x.structure.indices, to=0)
        matrix = Adjacency(
            Structure(indptr, columns, x.structure.num_cols), self._gather(f"{what} values", x.weight, to=0), None, None
        )
        return matrix.take(order) if self.stage == 0 else matrix

    def _order(self) -> Tensor:
        """The order that sorts the way's rows, which arrive in rank order, by number."""
        own = (self.number_N >= self.span.first) & (self.number_N < self.span.last)
        return torch.argsort(self.number_N[own])

    def inputs(self, chunks: list[Chunk]) -> list[tuple[Features, Known | None]]:
        x = self._features("features", self.graph.rows.x)
        known = self.view.known
        ahead = self._features("aggregated", known.aggregated) if isinstance(known, Known) else None
        if self.stage:
            return []
        given = []
        for chunk in chunks:
            rows = _rows(x, chunk.local, self.device)
            known_rows = None if ahead is None else Known(rows, _rows(ahead, chunk.local, self.device))
            given.append((rows, known_rows))
        return given

    def targets(self, chunks: list[Chunk]) -> list[tuple[Tensor, Tensor]]:
        last = self.stages - 1
        y = self._gather("labels", self.graph.rows.y, to=last)
        train = self._gather("training", self.graph.rows.masks["train"].to(torch.uint8), to=last).bool()
        if self.stage < last:
            return []
        order, found = self._order(), []
        y, train = y[order], train[order]
        for chunk in chunks:
            picked = train[chunk.local.rows].nonzero().flatten()
            found.append((picked.to(self.device), y[chunk.local.rows][picked].to(self.device)))
        return found

    def chunks(self, layer: int | None = None) -> list[Chunk]:
        device, own, numbers = self.placement.device, self.span, self.numbers
        read, computed = numbers.computed(None if layer is None else layer - 1), numbers.computed(layer)
        forward, arcs = self.matrix.span(*own), self.arcs.span(*own)
        backward, grades = self._backward(layer), self._grades
        reads = [self._read_by(way, layer) for way in range(self.ways)] if self.ways > 1 else [self._nothing()]
        chunks = []
        for index in range(self.slots):
            bounds = [Span(first, first + rows) for first, rows in zip(
                self.starts[:, index].tolist(), read[:, index].tolist(), strict=True)]  # fmt: skip
            span = bounds[self.way]
            local = Span(span.first - own.first, span.first - own.first + int(computed[self.way, index]))
            halos, sends = [], []
            for way, other in enumerate(bounds):
                mine = way == self.way
                halos.append(reads[self.way][other.rows].nonzero().flatten()[: 0 if mine else None] + other.first)
                sends.append(reads[way][span.rows].nonzero().flatten()[: 0 if mine else None])
            halo = torch.cat(halos)
            route = HaloRoute(torch.cat(sends), tuple(map(len, sends)), tuple(map(len, halos)), len(span))
            chunks.append(
                Chunk(
                    index=index,
                    span=span,
                    local=local,
                    ids=self.ids_N[span.rows].to(device),
                    halo=halo.to(device),
                    halo_ids=self.ids_N[halo].to(device),
                    route=route.to(device),
                    forward=forward.span(*local).to(device=device),
                    backward=backward.span(*span).to(device=device),
                    backward_halo=backward.take(halo).to(device=device),
                    arcs=arcs.span(*local).to(device),
                    grades=None if grades is None else Sides(grades[span.rows].to(device), grades[halo].to(device)),
                )
            )
        return chunks

    def _backward(self, layer: int | None) -> Adjacency:
        """The transpose of the way's rows that a layer computes [N, w]."""
        if layer is None and self.ways == 1:
            return self.matrix.T  # in memory that all ranks of a machine share
        forward = self.matrix.span(*self.span)
        return (forward if layer is None else rows_kept(forward, self.numbers.is_computed(self.way, layer))).T

    @cached_property
    def _grades(self) -> Tensor | None:
        """Grades of all nodes by in-degree, if a wire needs them."""
        if not (self.wire.graded or self.placement.hop.graded):
            return None
        degrees = self._pattern.indptr.diff()
        return quartiles(degrees, degrees)

    def computed_rows(self, layer: int | None) -> list[int]:
        rows: list[int] = self.numbers.computed(layer)[self.way].tolist()
        return rows

    def arc_share(self, layer: int) -> float:
        degree_w = self._pattern.span(*self.span).indptr.diff()
        return int(degree_w[self.numbers.is_computed(self.way, layer)].sum()) / max(1, int(degree_w.sum()))

    @property
    def _pattern(self) -> Structure:
        """The arcs of all nodes."""
        return self.arcs if self.attends else self.matrix.structure

    def _nothing(self) -> Tensor:
        return torch.zeros(self.view.num_nodes, dtype=torch.bool)

    def _read_by(self, way: int, layer: int | None) -> Tensor:
        """Mask [N] of the nodes that are read by the rows of a way that a layer computes."""
        arcs = self._pattern.span(int(self.starts[way, 0]), int(self.starts[way, -1]))
        chosen = torch.repeat_interleave(self.numbers.is_computed(way, layer), arcs.indptr.diff())
        return self._nothing().index_fill_(0, arcs.indices[chosen].long(), True)


def _rows(x: Features, span: Span, device: torch.device) -> Features:
    return x[span.rows].to(device) if isinstance(x, Tensor) else x.span(*span).to(device=device)
