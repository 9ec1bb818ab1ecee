"""The pipeline placement: layers over stages, chunks of the graph in time (GNNPipe, arXiv:2308.10087)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.exchange import Held, Wire, Wires
from fullgraph.nn import GATConv
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.partition import Part, pieces_of
from fullgraph.placement.base import Placement, Views
from fullgraph.placement.holding.live import Live, live_rows
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.pipeline.balance import cuttable
from fullgraph.placement.pipeline.from_rows import SetupOfRows
from fullgraph.placement.pipeline.rows import History
from fullgraph.placement.pipeline.step import PipelineStep
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.shard import Executor, Loss, Shard, WholeStep
from fullgraph.placement.view import Tensors
from fullgraph.transport import Mesh, Transport

Pieces = Callable[[Array, Array, int], Array]  # (indptr, indices, number of pieces) -> the piece of each row


def first_exact(exact_from: float, epochs: int) -> int | None:
    """The first exact step of a run that is exact after this share of its epochs; None: no step is exact."""
    return None if exact_from == 1 else round(exact_from * epochs)


@dataclass(eq=False, kw_only=True)
class ExactEnd:
    """Runs one executor's steps before step `first`, and an exact executor's steps from there on.

    The early executor's state is freed at step `first`, and later checkpoints do not have it.
    """

    early: Executor | None
    exact: Executor
    first: int

    @property
    def now(self) -> Executor:
        return self.exact if self.early is None else self.early

    @property
    def one_pass(self) -> bool:
        return self.now.one_pass

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        if self.early is not None and shard.clock.step >= self.first:
            shard.clock.retire()
            self.early = None
        return self.now.step(model, shard, loss)

    def choices(self) -> dict[str, object]:
        return self.now.choices()

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return self.now.plans(model)

    def held(self) -> Held:
        return self.now.held()

    def load_state(self, state: Tensors) -> None:
        self.now.load_state(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Placement):
    """Stages of `ways` ranks each: a stage owns consecutive layers, a way owns some nodes, and chunks of nodes pass the
    stages.

    A layer multiplies a chunk's arcs by rows of all nodes: fresh rows of chunks that this step has computed, else rows
    of a snapshot. Ways of a stage exchange halo rows of the current chunks. Evaluation is exact, and by parts: part p
    belongs to way p // stages.

    ways, stages: 0: computed from the other one and the number of ranks.
    chunks: per way; 0: four times the stages. 1 makes all rows fresh, and training exact.
    shuffle (T1): run the chunks in another order in every step.
    history: the snapshots (T2), which are zeros before the first one; and the gradients of historical rows (T3).
    hop: the wire between stages.
    cut: the first block of each stage but stage 0; empty: so that all stages have equal work.
    measure: measure that work instead of counting it; runs with late or lossy hops are then not reproducible.
    exact_from: steps after this share of the run are exact: every rank computes all layers of its part, and rows cross
        fresh and uncompressed. 1: no step is exact.
    """

    ways: int = 1
    stages: int = 0
    chunks: int = 0
    shuffle: bool = True
    history: History = History()
    hop: Wires = field(default_factory=Wire)
    cut: tuple[int, ...] = ()
    measure: bool = False
    exact_from: float = 1.0
    pieces: Pieces = pieces_of  # divides a part into chunks

    def mesh(self, ranks: int) -> Mesh:
        """The mesh of stages and ways; refuse numbers that do not fit together."""
        mesh = Mesh.of(ranks, ways=self.ways, stages=self.stages)
        stages = mesh.sizes["stage"]
        if self.chunks < 0 or 1 < self.chunks < stages:
            raise InputError(f"chunks={self.chunks}: fewer than the {stages} stages; choose {stages} or more, or 0")
        if self.history.freeze < 1:
            raise InputError(f"freeze={self.history.freeze}: at least 1, which keeps the last step's rows")
        return mesh

    def check(self, model: nn.Module, ranks: int) -> None:
        if self.host_rows:
            raise InputError("a pipeline keeps its chunks' input rows on the device; leave out --features-on host")
        if self.history.gradients == "last" and any(isinstance(module, GATConv) for module in model.modules()):
            raise InputError("gradients=last are those of products with a matrix; with attention use double or none")
        cuttable(model, self.mesh(ranks).sizes["stage"], self.cut)

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        by_parts = self.by_parts
        views = by_parts.views(self.graph_of(part), transport, aggregation)
        clock, graph = by_parts.new_clock(), views.train.graph.on_host()
        setup = SetupOfRows(self, views.train, graph, self._live(views, graph, transport), wire, clock, aggregation)
        parts = views.train.trimmed(views.live).opened(by_parts.channels, Wire(), clock, by_parts.rules)
        parts = replace(parts, live=setup.live_of_part)
        return views.shard(parts, self.ending(PipelineStep(setup), WholeStep(parts)), part.manifest.graph)

    def _live(self, views: Views, graph: RankGraph, transport: Transport) -> Live | None:
        """The rows of a part that each layer computes; None: all."""
        if self.by_parts.hops:  # the live rows are known, and rows are in their order
            return None if views.live is None else views.live.in_order()
        return live_rows(graph, self.hops, transport) if any(hop is not None for hop in self.hops) else None

    def ending(self, chunked: Executor, exact: Executor) -> Executor:
        """The executor of the chunks' steps, and of the exact steps after them, if there are any."""
        first = self.first_exact
        return chunked if first is None else ExactEnd(early=chunked, exact=exact, first=first)

    @property
    def first_exact(self) -> int | None:
        """The first step that is exact; None: no step is exact."""
        return first_exact(self.exact_from, self.epochs)

    @property
    def by_parts(self) -> Partitioned:
        """The partitioned placement for evaluation, precomputed input and the exact phase, which alone trims rows."""
        hops = () if self.first_exact is None else self.hops
        return replace(
            self.options_for(Partitioned),
            hops=hops,
            order="given",
            keep_halo=False,
            cover=True,
            by_host=True,
            sends="mapped" if self.sends == "mapped" else "narrow",
        )
