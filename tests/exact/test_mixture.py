"""The mixture placement equals one process, sends the bytes of its formula, and works with any wire."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fullgraph import api, nn, recipes
from fullgraph.codec import Half, LowBit
from fullgraph.data import Graph
from fullgraph.exchange import Adaptive, Pipelined, Wire
from fullgraph.partition import Banded, partition
from fullgraph.placement import Mixture
from fullgraph.report import read_metrics
from fullgraph.run import Run
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting
from tests.support import (
    CASES,
    assert_same,
    dense_trace,
    differing,
    random_graph,
    resumed_epochs,
    train_trace,
    trainer_of,
    whole_logits,
)

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
SPECS = {
    "gcn": nn.GCN(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=15, heads=3, dropout=0.5, input_dropout=True),
    "gcnii": nn.GCNII(layers=4, hidden=8, dropout=0.3),
    "resgcn": nn.ResGCN(layers=4, hidden=8, dropout=0.3),
}
SHAPES = {
    "batch norm, residual": nn.GraphSAGE(
        layers=4, hidden=13, dropout=0.2, input_dropout=True, norm="batch", residual=True
    ),
    "layer norm, linear": nn.GCN(layers=4, hidden=13, dropout=0.2, input_dropout=True, norm="layer", linear_layers=2),
    "narrow": nn.GraphSAGE(layers=3, hidden=3, dropout=0.5, input_dropout=True),
    "one layer": nn.GIN(layers=1, dropout=0.0),
    "narrow heads": nn.GAT(layers=2, hidden=3, heads=1, dropout=0.2, input_dropout=True),
}
mixed = partial(train_trace, placement=Mixture)


def cut(parts, method="contiguous", **options):
    """Partition as a run does; 61 nodes, 7 features and 3 classes are not divisible by the ranks."""
    graph = random_graph(nodes=61, features=7, classes=3, **options)
    return graph, partition(graph, parts, method=method, **({"blocks": 3} if method == "banded" else {}))


BLOCKS = {
    "blocks": cut,
    "directed, weighted blocks": partial(cut, directed=True, weighted=True),
    "sparse blocks": partial(cut, sparse=True),
}
BANDED = {
    "symmetric": partial(cut, method="banded"),
    "directed, weighted, sparse": partial(cut, method="banded", directed=True, weighted=True, sparse=True),
}
in_blocks = partial(train_trace, placement=partial(Mixture, blocks=3))


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", BLOCKS)
def test_ranks_equal_dense_algebra(case, model):
    spec, make = SPECS[model], BLOCKS[case]
    losses, grads = dense_trace(make(1)[0], spec)
    logits = []
    for ranks, blocks in ((1, 1), (2, 3), (3, 1), (4, 5)):
        traces = run_threads(ranks, partial(mixed, placement=partial(Mixture, blocks=blocks)), make, spec)
        assert_same(traces, losses, grads)
        logits.append(whole_logits(traces, 61))
        torch.testing.assert_close(logits[-1], logits[0], **TIGHT)


@pytest.mark.parametrize("case", CASES)
def test_any_cut_equals_dense_algebra(case):
    """Rows need not be blocks, nor equally many on every rank: nodes are numbered by owner."""
    make, spec = CASES[case], SPECS["gcn" if case == "weighted" else "sage"]
    assert_same(run_threads(3, in_blocks, make, spec), *dense_trace(make(3)[0], spec))


@pytest.mark.parametrize("case", BANDED)
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_rows_in_another_order_equal_dense_algebra(case, model):
    make, spec = BANDED[case], SPECS[model]
    traces = run_threads(3, in_blocks, make, spec)
    assert_same(traces, *dense_trace(make(1)[0], spec))
    torch.testing.assert_close(whole_logits(traces, 61), whole_logits(run_threads(1, mixed, make, spec), 61), **TIGHT)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precompute", [True, False])
def test_shapes_equal_dense_algebra(shape, precompute):
    """With `narrow`, four ranks share three columns."""
    make = BLOCKS["directed, weighted blocks"]
    losses, grads = dense_trace(make(1)[0], SHAPES[shape], precompute=precompute)
    for ranks in (1, 4):
        assert_same(run_threads(ranks, in_blocks, make, SHAPES[shape], 5, None, False, precompute), losses, grads)


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_sparse_features_may_be_aggregated_ahead(model):
    make, spec = BLOCKS["sparse blocks"], SPECS[model]
    losses, grads = dense_trace(make(1)[0], spec, part=torch.zeros(61))  # a layer's input crosses
    assert_same(run_threads(3, partial(in_blocks, narrow_first=False), make, spec), losses, grads)


@pytest.mark.parametrize("case", ["weighted", "sparse", "no training nodes"])
def test_inductive_equals_the_subgraph(case):
    graph, _ = CASES[case](3)
    mask = graph.train_mask[:, 0]
    losses, grads = dense_trace(graph.subgraph(mask), SPECS["gcn"], ids=torch.from_numpy(mask.copy()).nonzero()[:, 0])
    assert_same(run_threads(3, in_blocks, CASES[case], SPECS["gcn"], 5, None, True), losses, grads)


def privately_held(transport, case, specs):
    """Names of the structure's tensors outside shared memory, and the inodes of that memory."""
    private, inodes = [], set()
    for spec in specs:
        view = anew(
            transport, partial(trainer_of, placement=partial(Mixture, blocks=3)), case, spec, TrainConfig()
        ).shard.full.view
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:fullgraph" in line]
        spans = [(*(int(end, 16) for end in words[0].split("-")), words[4]) for words in maps]
        cells, patterns = view.whole.grid.cells.values(), view.whole.grid.patterns
        for matrix in (*cells, *(cell.T for cell in cells), *patterns, *(pattern.T for pattern in patterns)):
            for name in ("indptr", "indices", "weight", "perm"):
                tensor = getattr(getattr(matrix, "structure", matrix), name, getattr(matrix, name, None))
                if tensor is None or not tensor.numel() or (name == "perm" and matrix not in patterns):
                    continue
                found = {inode for low, high, inode in spans if low <= tensor.data_ptr() < high}
                inodes |= found
                private += [] if found else [(type(matrix).__name__, name)]
    return private, sorted(inodes)


def in_turn(transport, make, specs):
    return [anew(transport, in_blocks, make, spec) for spec in specs], privately_held(transport, make, specs)


def test_processes_equal_threads_and_share_the_structure():
    """The same body over gloo. All ranks' tensors, including transposes, are in one mapping per model."""
    make, specs = BLOCKS["directed, weighted blocks"], [SHAPES["batch norm, residual"], SPECS["gat"]]
    traces, held = zip(*run_processes(3, in_turn, make, specs), strict=True)
    for spec, *of_ranks in zip(specs, *traces, strict=True):
        assert_same(of_ranks, *dense_trace(make(1)[0], spec))
    assert held == (([], held[0][1]),) * 3
    assert len(held[0][1]) == len(specs)


def needs_one_structure(transport, case):
    shard = trainer_of(transport, case, SPECS["gcn"], TrainConfig(), placement=Mixture).shard
    structure = shard.full.view.whole.grid.cells[0, 0].structure
    return structure.T is structure


def test_a_symmetric_graph_stays_one():
    """The backward pass then needs no second copy of the structure."""
    assert run_threads(3, needs_one_structure, BLOCKS["blocks"]) == [True] * 3
    assert run_threads(3, needs_one_structure, BLOCKS["directed, weighted blocks"]) == [False] * 3


def cells_of(transport, case):
    trainer = trainer_of(transport, case, SPECS["gcn"], TrainConfig(), placement=partial(Mixture, blocks=4))
    return set(trainer.shard.full.view.whole.grid.cells)


def test_of_a_band_a_block_reads_its_neighbours():
    """For any ids: a circle in a random order, whose 4 blocks read themselves and their neighbours."""

    def make(parts):
        ring = np.random.default_rng(0).permutation(80)
        arcs = np.concatenate([np.stack([ring, np.roll(ring, step)]) for step in (-2, -1, 1, 2)], 1)
        kind = np.arange(80) % 3
        graph = Graph(arcs, np.ones((80, 2)), kind, [kind == k for k in range(3)])
        return graph, partition(graph, parts, method="banded", blocks=4)

    near = {(b, j) for b in range(4) for j in range(4) if abs(b - j) <= 1}
    assert run_threads(2, cells_of, make) == [near] * 2


def sent(transport, case, spec, precompute, blocks=1):
    """Numbers of one step by channel, on this rank."""
    numbers = Counter()

    def count(key, nbytes):
        numbers[key.channel] += nbytes // 8

    counting = Counting(transport, count)
    config = TrainConfig(epochs=1, dtype="float64", precompute=precompute)
    trainer = trainer_of(counting, case, spec, config, placement=partial(Mixture, blocks=blocks))
    numbers.clear()
    trainer.train_step()
    tiles = Counter()
    for channel, count in numbers.items():
        if channel.startswith("tiles/"):
            tiles[channel.split("/block")[0]] += count
    return tiles


def moved(graph, assignment, width):
    """N d - sum_r n_r d_r, from the assignment alone."""
    rows = np.bincount(assignment.part, minlength=assignment.parts)
    columns = [len(share) for share in np.array_split(np.arange(width), assignment.parts)]
    return graph.num_nodes * width - int(rows @ columns)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("case", "hidden", "precompute", "layer0"),
    [
        ("blocks", 8, True, (0, 0)),  # precomputed: nothing moves
        ("blocks", 8, False, (7, 2)),  # the input is sent, and has no gradient
        ("blocks", 5, False, (5, 4)),  # mapped to 5 columns first
        ("sparse blocks", 8, True, (8, 4)),  # sparse: mapped first
    ],
)
def test_bytes_equal_the_formula(case, hidden, precompute, layer0, ranks):
    make, spec = BLOCKS[case], nn.GCN(layers=3, hidden=hidden)
    graph, assignment = make(ranks)
    total = sum(run_threads(ranks, sent, make, spec, precompute, ranks - 1), Counter())
    width, moves = layer0
    volume = partial(moved, graph, assignment)
    want = {0: moves * volume(width), 1: 4 * volume(hidden), 2: 4 * volume(3)}
    got = {n: sum(total[f"tiles/layer{n}/{side}"] for side in ("columns", "rows")) for n in range(3)}
    assert got == want
    assert sum(total.values()) == sum(want.values())


def test_bytes_of_attention_equal_the_formula():
    """Mapped rows as tiles, and two scores per head of every node to all ranks; the last layer's heads are 3 wide."""
    make = BLOCKS["blocks"]
    total = sum(run_threads(3, sent, make, nn.GAT(layers=2, hidden=8, heads=2), True, 2), Counter())
    for layer, width in enumerate((8, 2 * 3)):
        tiles = sum(total[f"tiles/layer{layer}/{side}"] for side in ("columns", "rows"))
        assert tiles == 4 * moved(*make(3), width)
        assert total[f"tiles/layer{layer}/scores"] == 2 * (2 * 2 * 61 * (3 - 1))


def seen(transport, case):
    """The pattern of all rows, and the rows of all ranks in the order of its columns."""
    trainer = trainer_of(transport, case, nn.GAT(hidden=4, heads=1), TrainConfig(dtype="float64"), placement=Mixture)
    view, x = trainer.shard.full.view, trainer.shard.full.x
    (pattern,), (sources,) = view.whole.grid.patterns, view.spread(x, 0, "sources", tuple(range(transport.size))).wait()
    return pattern.rows, pattern.indices, sources


def test_arcs_and_sources_fit_one_another():
    make = CASES["directed"]
    graph, _ = make(3)
    pairs = {(int(t), int(s)) for s, t in zip(*graph.edge_index, strict=True)} | {(n, n) for n in range(60)}
    row_of = {tuple(row): node for node, row in enumerate(graph.x)}
    for rows, columns, sources in run_threads(3, seen, make):
        nodes = [row_of[tuple(row.tolist())] for row in sources]
        assert {(nodes[r], nodes[c]) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)} == pairs


def test_equal_shares_move_all_but_one_share():
    def make(parts):
        graph = random_graph(nodes=60, features=8, classes=4)
        return graph, partition(graph, parts, method="contiguous")

    total = sum(run_threads(4, sent, make, nn.GCN(layers=3, hidden=8), True), Counter())
    assert sum(total.values()) == 4 * (60 * 8 + 60 * 4) * 3 // 4


def test_late_tiles_reach_the_exact_gradients_of_frozen_weights():
    """After two waits per layer and direction, every version is the same."""
    make, spec = BLOCKS["directed, weighted blocks"], nn.GraphSAGE(layers=3, hidden=8, dropout=0.0)
    losses, grads = dense_trace(make(1)[0], spec, 1)
    late = Wire(schedule=Pipelined())
    for trace in run_threads(3, partial(in_blocks, lr=1e-30), make, spec, 12, late):
        torch.testing.assert_close(trace["losses"][-1], losses[0], **TIGHT)
        torch.testing.assert_close(trace["grads"][-1], grads[0], **TIGHT)
        assert abs(trace["losses"][0] - losses[0]) > 1e-3


@pytest.mark.parametrize(
    ("wire", "spec"),
    [
        (Wire(codec=LowBit(8), backward=Half()), nn.GCN(layers=3, hidden=16, dropout=0.0)),
        (Adaptive(bits=4, tau=1), nn.GAT(layers=2, hidden=8, heads=2, dropout=0.0)),
    ],
    ids=["8", "4-8"],
)
def test_few_bits_ride_on_tiles(wire, spec):
    """Close to the exact losses but not equal, and the same in every run."""
    make = BLOCKS["blocks"]
    losses, _ = dense_trace(make(1)[0], spec)
    one, other = (run_threads(3, in_blocks, make, spec, 5, wire)[0]["losses"] for _ in range(2))
    assert torch.equal(one, other)
    assert 0 < (one - losses).abs().max() < 0.05


def test_late_blocks_resume_to_the_bit():
    """A version of each block is in flight when a checkpoint is written."""
    config = TrainConfig(epochs=3, dtype="float64", eval_every=2, checkpoint_every=1)
    run = (BANDED["symmetric"], SPECS["sage"], config, Wire(schedule=Pipelined(), codec=LowBit(4)), True, False)
    for (losses, saved), *resumed in run_threads(3, resumed_epochs, *run, partial(Mixture, blocks=3)):
        for start, (rest, later) in enumerate(resumed):
            assert rest == losses[start:]
            assert differing(later[-1], saved[-1]) == []


@pytest.fixture(scope="module")
def graph():
    return random_graph(nodes=203, arcs=900, features=10)


def test_a_run_equals_vanilla_on_one_rank(graph, tmp_path):
    """From the call to the predictions, resumed half-way, with a rank that only aggregates."""
    options = {"model": nn.GraphSAGE(layers=3, hidden=16), "dtype": "float64", "eval_every": 2}
    one = api.train(graph, parts=1, epochs=8, out=tmp_path / "one", **options)
    strategy = recipes.mixgcn(blocks=3, roles="sparse,both", devices="cpu,cpu+cpu")
    mix = api.train(graph, strategy=strategy, parts=2, epochs=4, checkpoint_every=2, out=tmp_path / "mix", **options)
    assert Run.read(mix.folder).partitioner == Banded(blocks=3, empty=(0,))
    api.resume(mix.folder, epochs=8)
    lines, mixed_lines = (read_metrics(run.folder / "metrics.jsonl") for run in (one, mix))
    assert [line.loss for line in mixed_lines] == pytest.approx([line.loss for line in lines], abs=1e-9)
    result = api.FinishedRun(mix.folder).result
    volume = partial(moved, graph, partition(graph, 2, method="banded", blocks=3, empty=(0,)))
    assert result["bytes_per_epoch"] == 4 * 8 * (volume(16) + volume(graph.num_classes))
    api.predict(mix.folder, tmp_path / "again")
    np.testing.assert_array_equal(np.load(tmp_path / "again" / "classes.npy"), one.predictions)
