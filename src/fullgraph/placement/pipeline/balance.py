"""Divide a model into the stages of a pipeline: the cost of each block, and the most even cut."""

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fullgraph.device import synchronize
from fullgraph.errors import InputError
from fullgraph.nn import BatchNorm, Block, Chain, State
from fullgraph.nn.view import Features
from fullgraph.placement.pipeline.view import ChunkView, StageRows

TENSORS = 4  # most tensors of a state
REPEATS = 3  # repeats of a measurement; the fastest counts
# Costs in multiply-adds of a dense product, on CPUs and GPUs:
SPARSE = 8  # a multiply-add of a sparse product
NUMBER = 16  # a number in norms, activations and dropout


def cost_table(model: Chain, chunk: ChunkView, x: Features, *, measure: bool) -> Tensor:
    """Per block: its work on a chunk with input rows x, then the widths of its output state."""
    table = torch.zeros(len(model.blocks), 1 + TENSORS, dtype=torch.float64)
    model = copy.deepcopy(model)
    setup = chunk.stage.setup
    alone = StageRows(setup=setup, alone=True)  # one chunk cannot tell how many rows the layers leave out of all
    view = ChunkView(alone, chunk.chunk, chunk.known)
    state: State = (x,)
    for row, block in zip(table, model.blocks, strict=True):
        taken = [_timed(block, state, view) for _ in range(REPEATS if measure else 1)]
        before, state = state, taken[-1][1]
        work = _work(block, before, state, view, (1.0, 1.0))
        due = _work(block, before, state, view, setup.shares(block.layer))
        row[0] = min(seconds for seconds, _ in taken) * due / work if measure else due
        row[1 : 1 + len(state)] = torch.tensor([part.shape[1] for part in state])
        alone.stores.clear()  # no stage has the stores of all layers
    return table


def _work(
    block: Block,
    before: tuple[Features, ...],
    after: tuple[Features, ...],
    view: ChunkView,
    shares: tuple[float, float],
) -> float:
    """The work of the block that just ran, in multiply-adds, for these shares of its rows and arcs."""
    rows, x = len(view.ids), before[0]
    entries = rows * x.shape[1] if isinstance(x, Tensor) else x.structure.num_arcs
    weights = sum(weight.numel() for weight in block.parameters() if weight.dim() > 1)
    sparse = view.chunk.forward.structure.num_arcs * sum(store.rows.shape[1] for store in view.stage.stores.values())
    numbers = rows * sum(part.shape[1] for part in after)
    of_rows, of_arcs = shares
    return of_rows * (weights * entries / max(1, x.shape[1]) + NUMBER * numbers) + of_arcs * SPARSE * sparse


def _timed(block: Block, state: State, view: ChunkView) -> tuple[float, State]:
    """Seconds of a block's forward and backward pass, and its output state, detached."""
    start = _now(view)
    out = [part for part in block(state, view) if isinstance(part, Tensor)]
    torch.autograd.backward(out, [torch.ones_like(part) for part in out])
    seconds = _now(view) - start
    return seconds, tuple(part.detach().requires_grad_() for part in out)


def _now(view: ChunkView) -> float:
    synchronize(view.ids.device)
    return time.perf_counter()


def cuttable(model: nn.Module, stages: int, cut: Sequence[int] = ()) -> Chain:
    """Check that the model can be cut into `stages` stages before these blocks, and can run on chunks; return it."""
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


def balanced(costs: Sequence[float], stages: int) -> list[int]:
    """The first block of each stage but stage 0, so that the most expensive stage is as cheap as possible."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    blocks = len(costs)
    worst = {(0, 0): 0.0}  # (stages, blocks) -> the most expensive stage of the best cut
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
