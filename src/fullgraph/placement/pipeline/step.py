"""The executor of a pipeline: layers over stages, chunks of the graph in time (GNNPipe, arXiv:2308.10087)."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Held, Hop
from fullgraph.nn import Block, Chain
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.nn.view import Features
from fullgraph.placement.layer_plans import plan_layers
from fullgraph.placement.pipeline.balance import TENSORS, balanced, cost_table, cuttable
from fullgraph.placement.pipeline.order import stage_order
from fullgraph.placement.pipeline.rows import Chunk
from fullgraph.placement.pipeline.setup import Setup
from fullgraph.placement.pipeline.view import ChunkView, StageRows
from fullgraph.placement.shard import Loss, Shard
from fullgraph.placement.view import Channels, Tensors
from fullgraph.transport import Key


@dataclass(eq=False, kw_only=True)
class Border(Channels):
    """The border between stage `index` and the next: a channel per chunk; features go up, gradients come down."""

    setup: Setup
    index: int
    rows: Sequence[int] = ()  # by chunk, the rows that cross; known when the stages have their layers

    def up(self, chunk: Chunk) -> Hop:
        return Hop(self._at(chunk).features)

    def down(self, chunk: Chunk) -> Hop:
        return Hop(self._at(chunk).gradients)

    def _at(self, chunk: Chunk) -> Channel:
        return self.channel(
            f"chunk{chunk.index}", lambda: self.setup.hop_channel(self.index, chunk, self.rows[chunk.index])
        )


class PipelineStep:
    """Stage s runs its blocks on chunk after chunk, while stage s + 1 runs the previous chunk; then all go back.

    Every rank holds the whole model and trains its stage's blocks. The gradient all-reduce adds the ways' gradients and
    brings them to the other stages, so every rank can evaluate, save and resume at any time.
    """

    one_pass = False  # one backward pass per chunk

    def __init__(self, setup: Setup, firsts: Sequence["PipelineStep"] = ()) -> None:
        """firsts: in a dry run, the steps of the first stages of all ways."""
        self.setup, self.placement, self.stage, self.firsts = setup, setup.placement, setup.stage, firsts
        _ = setup.halos, setup.lanes  # in the same order on all ranks
        self.chunks = setup.chunks()
        self.rows = StageRows(setup=setup)
        given = setup.inputs(self.chunks)  # only on the first stage
        self.inputs = [x for x, _ in given]
        known = [of for _, of in given] if given else [None] * len(self.chunks)
        self.views = [ChunkView(self.rows, c, k) for c, k in zip(self.chunks, known, strict=True)]
        self.targets = setup.targets(self.chunks)  # only on the last stage
        self.below = Border(setup=setup, index=self.stage - 1) if self.stage else None
        self.above = Border(setup=setup, index=self.stage) if self.stage < setup.stages - 1 else None
        self.like = torch.empty(0, dtype=self.placement.dtype, device=setup.device)
        self.cut: Sequence[int] = self.placement.cut  # the first block of each stage but stage 0
        self.widths: Tensor | None = None  # [blocks, TENSORS] the widths of each block's output state

    def order(self, step: int) -> list[Chunk]:
        """The chunks in the order of this step, the same on all ranks."""
        if not self.placement.shuffle:
            return list(self.chunks)
        return [self.chunks[i] for i in shuffled(len(self.chunks), self.placement.seed, step)]

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        blocks, widths = self._mine(model)
        step, order = shard.clock.step, self.order(shard.clock.step)
        total = self.like.new_zeros(())
        entries: dict[int, Tensor | None] = {}
        roots: dict[int, Tensor] = {}
        for kind, index, coming in stage_order([chunk.index for chunk in order]):
            chunk, expected = self.chunks[index], [self.chunks[other] for other in coming]
            if kind == "B":
                self._walk_back(chunk, expected, entries.pop(index), roots.pop(index), step)
                continue
            state, entries[index] = self._enter(chunk, expected, widths, step)
            for block in blocks:
                state = block(state, self.views[index])
            if self.above is None:
                picked, labels = self.targets[index]
                root = loss(state[0][picked], labels, self.setup.view.counts["train"])  # type: ignore[index]
                total += root.detach()
            else:
                rows = self.above.rows[index]
                root = torch.cat([part[:rows] for part in state], 1) if len(state) > 1 else state[0]  # type: ignore[index,assignment]
                assert len(root) == rows, "a block's number says behind which graph layer it comes"
                self.above.up(chunk).send(root.detach(), step)
            roots[index] = root
        return total

    def _enter(
        self, chunk: Chunk, coming: list[Chunk], widths: Sequence[int], step: int
    ) -> tuple[tuple[Features, ...], Tensor | None]:
        """A chunk's input state, and the tensor whose gradient goes back to the stage before."""
        if self.below is None:
            return (self.inputs[chunk.index],), None
        like = self.like.new_empty(0, sum(widths))
        for other in coming:
            self.below.up(other).expect(like, step)
        entry = self.below.up(chunk).take(self.below.rows[chunk.index], like, step).detach().requires_grad_()
        return entry.split(list(widths), 1), entry

    def _walk_back(self, chunk: Chunk, coming: list[Chunk], entry: Tensor | None, root: Tensor, step: int) -> None:
        """A chunk's backward pass on this stage, from its output to its input."""
        if self.above is None:
            root.backward()
        else:
            for other in coming:
                self.above.down(other).expect(root[:0].detach(), step)
            root.backward(self.above.down(chunk).take(len(root), root, step))
        if self.below is not None and entry is not None:
            self.below.down(chunk).send(torch.zeros_like(entry) if entry.grad is None else entry.grad, step)

    def _mine(self, model: nn.Module) -> tuple[Sequence[Block], Sequence[int]]:
        """This stage's blocks, and the widths of their input state."""
        chain = cuttable(model, self.setup.stages, self.cut)
        if self.widths is None:
            costs, self.widths = self._costs(chain)
            self.cut = self.cut or balanced(costs, self.setup.stages)
        first, last = [0, *self.cut, len(chain.blocks)][self.stage : self.stage + 2]
        widths = [width for width in self.widths[first - 1].tolist() if width] if first else []
        for border, block in ((self.below, first - 1), (self.above, last - 1)):
            if border is not None:
                border.rows = self.setup.rows_after(chain.blocks[block].layer)
        return chain.blocks[first:last], widths

    def _costs(self, model: Chain) -> tuple[list[float], Tensor]:
        """Per block: its work on the largest chunks of all ways, and the widths of its output state."""
        if self.firsts:
            tables = [first.table(model) for first in self.firsts]
            return sum(table[:, 0] for table in tables).tolist(), tables[0][:, 1:].long()  # type: ignore[union-attr]
        table = self.table(model) if self.stage == 0 else torch.zeros(len(model.blocks), 1 + TENSORS).double()
        table = self.setup.transport.all_reduce(Key("setup/costs", 0), table).wait()
        return table[:, 0].tolist(), (table[:, 1:] / self.setup.ways).long()

    def table(self, model: Chain) -> Tensor:
        """Costs and widths of all blocks, from a run of the first stage."""
        largest = max(self.chunks, key=lambda chunk: len(chunk.span)).index
        return cost_table(model, self.views[largest], self.inputs[largest], measure=self.placement.measure)

    def choices(self) -> dict[str, object]:
        return {"cut": tuple(self.cut)} if self.placement.measure and self.widths is not None else {}

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        view, known = self.setup.view, self.setup.view.known
        return plan_layers(
            self.placement.rules, model, known="" if known is None else known.kind, x=view.x, nodes=view.num_nodes,
            computed=self.setup.computed,
        )  # fmt: skip

    def _places(self) -> dict[str, Channels]:
        places = {"below": self.below, "above": self.above, "stage": self.rows}
        return {place: part for place, part in places.items() if part is not None}

    def _fingerprint(self) -> Tensor:
        """Fingerprint of the numbering of nodes, which is the order of snapshots."""
        return torch.tensor(zlib.crc32(self.setup.ids.cpu().numpy().tobytes()))

    def held(self) -> Held:
        held = {f"{place}/{n}": value for place, part in self._places().items() for n, value in part.held().items()}
        if self.widths is not None:
            held |= {"cut": torch.tensor(self.cut), "widths": self.widths, "chunks": self._fingerprint()}
        return held

    def load_state(self, state: Tensors) -> None:
        if "widths" in state:
            self.cut, self.widths = state["cut"].tolist(), state["widths"]
            if not torch.equal(state["chunks"].cpu(), self._fingerprint()):
                raise InputError("the checkpoint's chunks were cut by another METIS; resume where it was written")
        for place, part in self._places().items():
            prefix = f"{place}/"
            part.load_state({n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)})


def shuffled(chunks: int, seed: int, step: int) -> list[int]:
    """The order of a step's chunks."""
    dice = torch.Generator().manual_seed(Key(f"order/{seed}", step).seed >> 1)
    order: list[int] = torch.randperm(chunks, generator=dice).tolist()
    return order
