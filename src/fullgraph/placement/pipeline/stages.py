"""The executor of a pipeline: layers over stages, chunks of the graph in time (GNNPipe, arXiv:2308.10087)."""

import copy
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fullgraph.device import synchronize
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Held
from fullgraph.exchange.inbox import Inbox
from fullgraph.nn import BatchNorm, Block, Chain
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.nn.view import Features
from fullgraph.placement.layer_plans import plan_layers
from fullgraph.placement.pipeline.order import stage_order
from fullgraph.placement.pipeline.rows import Chunk, StageRows
from fullgraph.placement.pipeline.view import ChunkView
from fullgraph.placement.shard import Loss, Shard
from fullgraph.placement.view import Channels, RankView, Tensors
from fullgraph.transport import Key, Transport

TENSORS = 4  # that a state may have
REPEATS = 3  # of a measurement; the fastest counts
# What work takes beside a multiply-add of a dense product, on a CPU and on a GPU alike:
SPARSE = 8  # one of a sparse product
NUMBER = 16  # a number that norms, activations and dropout pass over


@dataclass(eq=False, kw_only=True)
class Border(Channels):
    """Between two stages: a channel a chunk, whose features go up and whose gradients come down."""

    channel_of: Callable[[Chunk, int], Channel]  # of a chunk, so many of whose rows cross
    rows: Sequence[int] = ()  # by chunk; known when the stages have their layers

    def up(self, chunk: Chunk) -> Inbox:
        return self._at(chunk).features

    def down(self, chunk: Chunk) -> Inbox:
        return self._at(chunk).gradients

    def _at(self, chunk: Chunk) -> Channel:
        return self.channel(f"chunk{chunk.index}", lambda: self.channel_of(chunk, self.rows[chunk.index]))


def _send(inbox: Inbox, rows: Tensor, step: int) -> None:
    """Post rows; who sends a hop never reads it, so the sends of steps before, long done, are let go here."""
    for old in [s for s in inbox.versions if s < step]:
        inbox.versions.pop(old).wait()
    inbox.post(inbox.route.pack(rows), rows, step)


def _expect(inboxes: Iterable[Inbox], like: Tensor, step: int) -> None:
    """Have what comes next received as soon as it comes."""
    for inbox in inboxes:
        inbox.post({}, like, step)


def _take(inbox: Inbox, rows: int, like: Tensor, step: int) -> Tensor:
    """The rows that the one peer sent; zeros where nothing is due yet, and none where a chunk has none."""
    for came in (inbox.read(step) or {}).values():
        return came
    return like.new_zeros(rows, like.shape[1])


@dataclass(eq=False, kw_only=True)
class PipelineStep:
    """Stage s runs its blocks on chunk after chunk, while stage s + 1 has the chunk before; then all the way back.

    Every rank holds the whole model, of which it trains its stage's blocks; the sum of weight gradients over all ranks
    adds those of the ways and hands them to the other stages, who so can evaluate, save and resume at any time.
    """

    stage: int
    stages: int
    transport: Transport  # of all ranks
    rows: StageRows
    parts: RankView  # the rows of this rank's part, and what is known of them
    chunks: Sequence[Chunk]
    views: Sequence[ChunkView]
    below: Border | None  # to the stage before, and
    above: Border | None  # to the one behind
    inputs: Sequence[Features]  # by chunk; of the first stage
    targets: Sequence[tuple[Tensor, Tensor]]  # by chunk: training rows, and their labels; of the last
    count: int  # training nodes of all
    like: Tensor  # [0], tells number format and device
    shuffle: bool
    seed: int
    cut: Sequence[int]  # the first block of each stage but stage 0; empty: such that stages have the same work
    measure: bool  # which is then measured, not counted
    widths: Tensor | None = None  # a row a block: the widths of the state it makes
    one_pass: ClassVar[bool] = False  # but one a chunk

    def order(self, step: int) -> list[Chunk]:
        """The chunks in the order of this step, the same on all ranks."""
        if not self.shuffle:
            return list(self.chunks)
        return [self.chunks[i] for i in shuffled(len(self.chunks), self.seed, step)]

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
                root = loss(state[0][picked], labels, self.count)  # type: ignore[index]
                total += root.detach()
            else:
                rows = self.above.rows[index]
                root = torch.cat([part[:rows] for part in state], 1) if len(state) > 1 else state[0]  # type: ignore[index,assignment]
                assert len(root) == rows, "a block's number says behind which graph layer it comes"
                _send(self.above.up(chunk), root.detach(), step)
            roots[index] = root
        return total

    def _enter(
        self, chunk: Chunk, coming: list[Chunk], widths: Sequence[int], step: int
    ) -> tuple[tuple[Features, ...], Tensor | None]:
        """The state that a chunk comes with; and the tensor whose gradient goes back."""
        if self.below is None:
            return (self.inputs[chunk.index],), None
        like = self.like.new_empty(0, sum(widths))
        _expect(map(self.below.up, coming), like, step)
        entry = _take(self.below.up(chunk), self.below.rows[chunk.index], like, step).detach().requires_grad_()
        return entry.split(list(widths), 1), entry

    def _walk_back(self, chunk: Chunk, coming: list[Chunk], entry: Tensor | None, root: Tensor, step: int) -> None:
        """A chunk's backward pass, from what it left the stage as to what it came as."""
        if self.above is None:
            root.backward()
        else:
            _expect(map(self.above.down, coming), root[:0].detach(), step)
            root.backward(_take(self.above.down(chunk), len(root), root, step))
        if self.below is not None and entry is not None:
            _send(self.below.down(chunk), torch.zeros_like(entry) if entry.grad is None else entry.grad, step)

    def _mine(self, model: nn.Module) -> tuple[Sequence[Block], Sequence[int]]:
        """This stage's blocks, and the widths of the state that comes to them."""
        chain = cuttable(model, self.stages, self.cut)
        if self.widths is None:
            costs, self.widths = self._costs(chain)
            self.cut = self.cut or balanced(costs, self.stages)
        first, last = [0, *self.cut, len(chain.blocks)][self.stage : self.stage + 2]
        widths = [width for width in self.widths[first - 1].tolist() if width] if first else []
        for border, block in ((self.below, first - 1), (self.above, last - 1)):
            if border is not None:
                border.rows = self.rows.live.after(chain.blocks[block].layer)
        return chain.blocks[first:last], widths

    def choices(self) -> dict[str, object]:
        return {"cut": tuple(self.cut)} if self.measure and self.widths is not None else {}

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        rows, view = self.rows, self.parts
        known = "" if view.known is None else view.known.kind
        return plan_layers(rows.rules, model, known=known, x=view.x, nodes=view.num_nodes, computed=rows.computed)

    def _costs(self, model: Chain) -> tuple[list[float], Tensor]:
        """Of each block: its work, as that on the largest chunk tells; and the widths of its state."""
        table = self.table(model) if self.stage == 0 else torch.zeros(len(model.blocks), 1 + TENSORS).double()
        table = self.transport.all_reduce(Key("setup/costs", 0), table).wait()
        ways = self.transport.size // self.stages
        return table[:, 0].tolist(), (table[:, 1:] / ways).long()

    def table(self, model: Chain) -> Tensor:
        """Of each block: its work, then the widths of the state it makes; found out by the first stage."""
        table = torch.zeros(len(model.blocks), 1 + TENSORS, dtype=torch.float64)
        model = copy.deepcopy(model)
        chunk = max(self.chunks, key=lambda chunk: len(chunk.span))
        whole = replace(self.rows.live, fewer={})  # one chunk cannot tell how many rows the layers leave out of all
        alone = replace(self.rows, channel_of=None, live=whole, stores={})
        view = replace(self.views[chunk.index], stage=alone)
        state: tuple[Features, ...] = (self.inputs[chunk.index],)
        for row, block in zip(table, model.blocks, strict=True):
            taken = [_timed(block, state, view) for _ in range(REPEATS if self.measure else 1)]
            before, state = state, taken[-1][1]
            work = _work(block, before, state, view, alone, (1.0, 1.0))
            live = _work(block, before, state, view, alone, self.rows.live.shares(block.layer))
            row[0] = min(seconds for seconds, _ in taken) * live / work if self.measure else live
            row[1 : 1 + len(state)] = torch.tensor([part.shape[1] for part in state])
            alone.stores.clear()  # no stage holds those of all layers
        return table

    def _places(self) -> dict[str, Channels]:
        places = {"below": self.below, "above": self.above, "stage": self.rows}
        return {place: part for place, part in places.items() if part is not None}

    def _fingerprint(self) -> Tensor:
        """Of the numbering of nodes, by which snapshots lie."""
        return torch.tensor(zlib.crc32(self.rows.ids.cpu().numpy().tobytes()))

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


def _work(
    block: Block, before: tuple[Features, ...], after: tuple[Features, ...], view: ChunkView, stage: StageRows,
    shares: tuple[float, float],
) -> float:  # fmt: skip
    """Multiply-adds of a block that ran just now, and what else takes time, in theirs; for shares of rows and arcs."""
    rows, x = len(view.ids), before[0]
    entries = rows * x.shape[1] if isinstance(x, Tensor) else x.structure.num_arcs
    weights = sum(weight.numel() for weight in block.parameters() if weight.dim() > 1)
    sparse = view.chunk.forward.structure.num_arcs * sum(store.rows.shape[1] for store in stage.stores.values())
    numbers = rows * sum(part.shape[1] for part in after)
    of_rows, of_arcs = shares
    return of_rows * (weights * entries / max(1, x.shape[1]) + NUMBER * numbers) + of_arcs * SPARSE * sparse


def _timed(block: Block, state: tuple[Features, ...], view: ChunkView) -> tuple[float, tuple[Features, ...]]:
    """Seconds of a block, forth and back, and the state it makes, cut off from it."""
    start = _now(view)
    out = [part for part in block(state, view) if isinstance(part, Tensor)]
    torch.autograd.backward(out, [torch.ones_like(part) for part in out])
    seconds = _now(view) - start
    return seconds, tuple(part.detach().requires_grad_() for part in out)


def _now(view: ChunkView) -> float:
    synchronize(view.ids.device)
    return time.perf_counter()


def cuttable(model: nn.Module, stages: int, cut: Sequence[int] = ()) -> Chain:
    """The model, if it can be cut into so many stages (before these blocks) and given its rows in chunks."""
    if not isinstance(model, Chain):
        raise InputError(
            f"a pipeline cannot cut {type(model).__name__}, which is no chain of blocks (fullgraph.nn.Chain); "
            "train it with another strategy"
        )
    if model.checkpoint_layers:
        raise InputError(
            "a pipeline overwrites its rows chunk by chunk and cannot run a layer twice; leave out --checkpoint-layers"
        )
    if len(model.blocks) < stages:
        raise InputError(
            f"{stages} stages for a model of {len(model.blocks)} layers; use more layers, fewer ranks or more ways"
        )
    if cut and (len(cut) != stages - 1 or sorted({0, *cut, len(model.blocks)}) != [0, *cut, len(model.blocks)]):
        raise InputError(
            f"cut={','.join(map(str, cut))}: give the first layer of each of the {stages} stages but the first, "
            f"rising, between 1 and {len(model.blocks) - 1}"
        )
    if any(isinstance(module, BatchNorm) for module in model.modules()):
        raise InputError("batch norm needs all nodes at once, a pipeline has them in chunks; use norm=layer or none")
    return model


def shuffled(chunks: int, seed: int, step: int) -> list[int]:
    """The order of a step's chunks."""
    dice = torch.Generator().manual_seed(Key(f"order/{seed}", step).seed >> 1)
    order: list[int] = torch.randperm(chunks, generator=dice).tolist()
    return order


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """The first block of each stage but stage 0, such that the dearest stage is as cheap as it can be."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    blocks = len(costs)
    worst = {(0, 0): 0.0}  # (stages, blocks) -> the dearest stage of the best cut
    last: dict[tuple[int, int], int] = {}
    for stage in range(1, stages + 1):
        for end in range(stage, blocks - (stages - stage) + 1):
            choices = {
                begin: max(worst[stage - 1, begin], sums[end] - sums[begin])
                for begin in range(stage - 1, end)
                if (stage - 1, begin) in worst
            }
            last[stage, end] = min(choices, key=lambda begin: choices[begin])
            worst[stage, end] = choices[last[stage, end]]
    cut = [blocks]
    for stage in range(stages, 1, -1):
        cut.append(last[stage, cut[-1]])
    return cut[:0:-1]
