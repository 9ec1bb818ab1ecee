"""Layers that exchange a minimum vertex cover of their edges: the same losses, fewer bytes, bit-identical resume."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from fullgraph import nn, recipes
from fullgraph.codec import BFloat16, Full, Half, LowBit, MinVariance, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Adaptive, Bounded, Drift, Pipelined, Skip, Smooth, Wire
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.partition import Assignment, cut_parts
from fullgraph.partition.cover import cover_columns, covered_rows
from fullgraph.placement import Partitioned
from fullgraph.placement.holding.cover import divided
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import adjoint_pair, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting
from tests.support import CASES, assert_same, dense_trace, differing, resumed_epochs, train_trace, trainer_of
from tests.support.cases import random_graph
from tests.typed.oracle import CASES as TYPED
from tests.typed.oracle import assert_typed, typed_trace

COVER = partial(Partitioned, cover=True)
SPECS = {
    "gcn": nn.GCN(layers=3, hidden=12, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=12, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=12, dropout=0.3, input_dropout=True),
    "gcnii": nn.GCNII(layers=3, hidden=8, dropout=0.3, alpha=0.2, norm="layer"),
    "resgcn": nn.ResGCN(layers=3, hidden=8, dropout=0.3),
    "narrow": nn.GraphSAGE(layers=3, hidden=3, dropout=0.5, norm="batch", residual=True),
}
RELATIONS = {"rgcn": nn.RGCN(layers=2, hidden=12, dropout=0.4), "sage": nn.HeteroSAGE(layers=3, hidden=8, dropout=0.3)}


def dense(m):
    """A matrix with all of its factors."""
    weights = torch.ones(m.structure.num_arcs, dtype=torch.float64) if m.weight is None else m.weight
    places = m.structure.rows, m.structure.indices.long()
    out = torch.zeros(m.shape, dtype=torch.float64).index_put_(places, weights, accumulate=True)
    out = out if m.row_scale is None else m.row_scale[:, None] * out
    return out if m.col_scale is None else out * m.col_scale


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("rows", "arcs", "counts"), [(20, 60, (10, 0, 15)), (3, 30, (0, 12)), (5, 0, (0, 0)), (0, 0, (0,))]
)
def test_the_halo_s_matrix_is_divided_into_two_factors(rows, arcs, counts, weighted, scaled):
    draw = torch.Generator().manual_seed(rows)
    halo = sum(counts)
    targets = torch.randint(max(1, rows), (arcs,), generator=draw).sort().values
    indptr = torch.nn.functional.pad(torch.bincount(targets, minlength=rows).cumsum(0), (1, 0))
    pattern = Structure(indptr, torch.randint(max(1, halo), (arcs,), generator=draw).int(), halo)

    def real(count):
        return torch.randn(count, dtype=torch.float64, generator=draw)

    m = Adjacency(pattern, real(arcs) if weighted else None, real(rows), real(halo) if scaled else None)
    alone = torch.from_numpy(cover_columns(pattern.indptr.numpy(), pattern.indices.numpy(), counts))
    owner_h = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    new, sums, owner_s = divided(m, alone, owner_h, torch.float64)
    of_owners = torch.bincount(owner_s, minlength=len(counts)).tolist()
    torch.testing.assert_close(dense(new) @ dense(sums), dense(m))
    assert sums.shape == (sum(of_owners), halo)
    assert all(few <= many for few, many in zip(of_owners, counts, strict=True))
    sizes = sums.structure.indptr.diff()
    assert sums.row_scale is not None
    torch.testing.assert_close(sums.row_scale * sizes, torch.ones_like(sums.row_scale))  # means, of the rows' range
    assert torch.equal(owner_h[sums.structure.indices.long()], owner_s[sums.structure.rows])


def covers_of(transport, case, spec, wire=None):
    """A placed view's rows as they cross, of a middle layer."""
    part = cut_parts(*case(transport.size), transport.rank)
    placement = COVER(dtype=torch.float64)
    view = placement.place(part, transport, wire or Wire(), spec.aggregation).train.view
    return view.crossing(1, drops=False), view.rows(1)


@pytest.mark.parametrize("case", ["directed", "weighted", "empty parts", "no halo", "overfull"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_the_gradients_route_is_the_transpose(case, model):
    def body(transport):
        rows, _ = covers_of(transport, CASES[case], SPECS[model])
        return adjoint_pair(transport, rows.cover, rows.sources)

    left, right = run_threads(3, body)[0]
    torch.testing.assert_close(left, right)


@pytest.mark.sweep
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_dense_algebra(case, ranks, model):
    losses, grads = dense_trace(CASES[case](ranks)[0], SPECS[model])
    assert_same(run_threads(ranks, partial(train_trace, placement=COVER), CASES[case], SPECS[model]), losses, grads)


@pytest.mark.parametrize("model", ["gcnii", "resgcn", "narrow"])
@pytest.mark.parametrize("case", ["directed", "weighted", "sparse"])
def test_other_models_equal_dense_algebra(case, model):
    losses, grads = dense_trace(CASES[case](1)[0], SPECS[model])
    for ranks in (2, 3):
        assert_same(run_threads(ranks, partial(train_trace, placement=COVER), CASES[case], SPECS[model]), losses, grads)


@pytest.mark.parametrize("model", RELATIONS)
@pytest.mark.parametrize("case", TYPED)
def test_relations_equal_dense_equations(case, model, monkeypatch):
    monkeypatch.setattr("fullgraph.placement.holding.live.WORTH", 1.0)
    spec = RELATIONS[model]
    found, _ = typed_trace(case, spec)
    for ranks in (2, 3):
        for hops in ((), spec.hops):
            placement = partial(COVER, hops=hops)
            traces = run_threads(ranks, partial(train_trace, placement=placement), TYPED[case], spec)
            assert_typed(traces, found, tolerance=1e-10)


def in_processes(transport):
    return train_trace(transport, CASES["weighted"], SPECS["gcn"], strategy=recipes.vanilla())


def test_processes_equal_dense_algebra():
    assert_same(run_processes(3, in_processes), *dense_trace(CASES["weighted"](3)[0], SPECS["gcn"]))


SAGE = SPECS["sage"]
STILL = replace(SAGE, dropout=0.0, input_dropout=False)
LATE = {
    "late": Wire(schedule=Pipelined()),
    "late and smoothed": Wire(schedule=Pipelined(2), smooth=Smooth(gamma=0.8, correct=True)),
    "bounded": Wire(schedule=Bounded(3)),
    "skipped": Wire(schedule=Skip(3)),
    "few columns": Wire(codec=Subsample(2.0)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("wire", LATE)
@pytest.mark.parametrize("ways", [{}, {"precompute": False}, {"inductive": True}, {"narrow_first": False}], ids=str)
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_whatever_is_linear_is_the_same_with_rows_and_with_sums(model, ways, wire):
    """Late rows, averages of rows, and chosen columns: sums of them are the same as the same of sums."""
    spec = replace(SPECS[model], dropout=0.0, input_dropout=False)
    want, got = (
        run_threads(3, partial(train_trace, wire=LATE[wire], placement=kind, **ways), CASES["directed"], spec)
        for kind in (Partitioned, COVER)
    )
    assert_same(got, want[0]["losses"], want[0]["grads"])


@pytest.mark.parametrize("narrow_first", [True, False])
def test_late_rows_keep_the_dropout_of_the_step_that_reads_them(narrow_first):
    """A sum would have an earlier mask, so a layer whose dropout follows the exchange sends rows."""
    wire = Wire(schedule=Pipelined())
    want, got = (
        run_threads(3, partial(train_trace, wire=wire, placement=kind, narrow_first=narrow_first),
                    CASES["directed"], SPECS["gcn"])
        for kind in (Partitioned, COVER)
    )  # fmt: skip
    assert_same(got, want[0]["losses"], want[0]["grads"])


def test_live_rows_have_covers_of_their_own():
    spec = SPECS["gcn"]
    graph = random_graph(nodes=90, arcs=150, train=torch.arange(90).numpy() % 30 == 3, directed=True)

    def case(parts):
        part = torch.arange(90).numpy() * parts // 90
        return graph, Assignment(part=part.astype("int32"), parts=parts, method="case", seed=0)

    live = partial(Partitioned, hops=spec.hops)
    want, got = (
        run_threads(3, partial(train_trace, placement=kind), case, spec)
        for kind in (Partitioned, partial(live, cover=True))
    )
    assert_same(got, want[0]["losses"], want[0]["grads"])

    def rows(transport):
        part = cut_parts(*case(3), transport.rank)
        view = live(cover=True, dtype=torch.float64).place(part, transport, Wire(), "gcn").train.view
        return [len(view.crossing(layer, drops=False).halo_ids) for layer in range(3)]

    by_layer = torch.tensor(run_threads(3, rows)).sum(0).tolist()
    assert by_layer[0] > by_layer[1] > by_layer[2]


# What crosses.


def bytes_of(transport, case, spec, strategy):
    """Bytes of a step that this rank gives to the transport, and those that its inboxes expect."""
    sent = []
    counting = Counting(transport, lambda key, nbytes: sent.append((key, nbytes)))
    trainer = trainer_of(counting, case, spec, TrainConfig(epochs=2), strategy=strategy)
    trainer.train_step()
    expected = sum(
        inbox.expected_bytes(0)
        for channel in trainer.shard.clock.channels.values()
        for inbox in (channel.features, channel.gradients)
    )
    return sum(nbytes for key, nbytes in sent if key.use == "rows" and key.step == 0), expected


@pytest.mark.parametrize("case", ["undirected", "directed", "weighted", "empty parts", "no halo"])
@pytest.mark.parametrize("codec", [Full(), BFloat16()], ids=str)
def test_bytes_are_those_of_the_smallest_cover(case, codec):
    """2 directions x 12 columns in the second layer, and as many as classes in the last; the first is precomputed."""
    graph, assignment = CASES[case](3)
    found = run_threads(3, bytes_of, CASES[case], SPECS["sage"], recipes.vanilla(codec=codec))
    columns = 12 + min(12, graph.num_classes)
    size = 4 if codec == Full() else 2
    want = 2 * columns * size * sum(covered_rows(graph, assignment))
    assert sum(sent for sent, _ in found) == sum(expected for _, expected in found) == want


def sent_by(strategy, spec=SAGE):
    return sum(sent for sent, _ in run_threads(3, bytes_of, CASES["directed"], spec, strategy))


def test_who_sends_sums():
    published = sent_by(recipes.vanilla(cover=False))
    assert sent_by(recipes.vanilla()) < published
    assert sent_by(recipes.vanilla(codec=Half())) == sent_by(recipes.vanilla()) / 2
    gat = nn.GAT(layers=3, hidden=12, heads=2)
    assert sent_by(recipes.vanilla(), gat) == sent_by(recipes.vanilla(cover=False), gat)
    for name in ("pipegcn", "sylvie-s", "varco", "bns", "adaqp", "sancus", "cd-r", "free"):
        assert STRATEGIES.make(name).layout().cover is False
        assert STRATEGIES.make(name, cover="true").layout().cover is True
    late = {"cover": "true", "smooth": "gf"}
    assert sent_by(STRATEGIES.make("pipegcn", **late), STILL) < sent_by(recipes.pipegcn(smooth="gf"), STILL)
    with pytest.raises(InputError, match="a mixture has no halo"):
        STRATEGIES.make("free", placement="mixture", cover="true")


class ReadsRows(nn.GCNConv):
    """GCN written with single rows of neighbours."""

    def forward(self, x, view, layer, row_map):
        if self.plan(x, view, layer).known:
            return super().forward(x, view, layer, row_map)
        message = view.send(x, layer, row_map)
        if layer == 1:
            return message.mapped(self.lin).aggregate() + self.bias
        sources, matrices = self.lin(message.sources()), view.rows(layer).matrices
        own = len(view.targets(x, layer)[1])
        return spmm(matrices.inner, sources[:own]) + spmm(matrices.outer, sources[own:]) + self.bias


class SaysSums(ReadsRows):
    sums = True


class SumsToo(nn.SAGEConv):
    """Nothing of its own that reads rows."""


@dataclass(frozen=True, kw_only=True)
class OwnConvs(nn.GCN):
    kind: type[nn.Conv] = ReadsRows

    def conv(self, in_width, out_width, *, last):
        return self.kind(in_width, out_width)


def test_a_convolution_of_one_s_own_that_reads_single_rows_has_them():
    given = {"layers": 3, "hidden": 12, "dropout": 0.5}
    losses, grads = dense_trace(CASES["directed"](3)[0], nn.GCN(**given))
    body = partial(train_trace, strategy=recipes.vanilla())
    assert_same(run_threads(3, body, CASES["directed"], OwnConvs(**given)), losses, grads)
    assert sent_by(recipes.vanilla(), OwnConvs(**given)) == sent_by(recipes.vanilla(cover=False), OwnConvs(**given))


def test_who_sums_says_so():
    assert not nn.Conv.sums
    assert not nn.GATConv.sums
    assert not ReadsRows.sums
    assert SumsToo.sums
    body = partial(train_trace, strategy=recipes.vanilla())
    with pytest.raises(InputError, match="sums = True"):
        run_threads(2, body, CASES["directed"], OwnConvs(layers=3, kind=SaysSums))


def test_a_layer_that_reads_single_rows_is_refused_in_one_line():
    def body(transport):
        part = cut_parts(*CASES["directed"](2), transport.rank)
        view = COVER().place(part, transport, Wire(), "sum").train.view
        view.clock.tick()
        message = view.send(view.x.clone(), 1)
        with pytest.raises(InputError, match="sums = True"):
            message.sources()
        with pytest.raises(InputError, match="sums = True"):
            message.mapped(torch.relu)
        return message.aggregate().shape

    run_threads(2, body)


# Resume.

CHANGED = Drift(bound=0.9, longest=2, gradients=True)
WIRES = {
    "exact": Wire(),
    "late, few bits, smoothed": Wire(schedule=Pipelined(2), codec=LowBit(2), smooth=Smooth(gamma=0.7), feedback=True),
    "bits by variance": Wire(codec=MinVariance(period=2), share=0.6, feedback=True),
    "late turns, skipped": Wire(schedule=Pipelined(2), turns=2, drift=CHANGED),
    "bits by degree and loss": Adaptive(tau=1, alpha=0.0, switch=True, feedback=True),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("narrow_first", [True, False])
def test_resuming_anywhere_is_bit_identical(wire, narrow_first):
    config = TrainConfig(epochs=4, eval_every=3, checkpoint_every=1)
    run = CASES["directed"], STILL, config, WIRES[wire], narrow_first, False, COVER
    for (losses, saved), *again in run_threads(3, resumed_epochs, *run, work=60.0):
        for epoch, (late_losses, late_saved) in enumerate(again):
            assert late_losses == losses[epoch:]
            assert all(differing(*pair) == [] for pair in zip(saved[epoch:], late_saved, strict=True))
