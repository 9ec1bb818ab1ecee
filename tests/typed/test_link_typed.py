"""Link prediction between two node types: equal to dense equations on any number of ranks; its pairs and its files."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.data import TypedGraph, load_typed, save_npz
from fullgraph.errors import InputError
from fullgraph.exchange import Pipelined, Wire
from fullgraph.partition import Assignment
from fullgraph.placement import Partitioned
from fullgraph.tasks import Link
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from tests.exact.test_link import hashed, key_of
from tests.support import differing, resumed_epochs, train_trace, whole_logits
from tests.support.oracles import trained
from tests.typed.oracle import SIZES, DenseTyped, assert_typed, parts_of, typed_graph

SEED, STEPS, WIDTH, NODES = 3, 4, 6, sum(SIZES.values())
WRITES, TURNED = ("author", "writes", "paper"), ("paper", "written_by", "author")
CITES = ("paper", "cites", "paper")
FIRST = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]).tolist(), strict=False))
SPECS = {
    "rgcn": nn.RGCN(layers=2, hidden=8, dropout=0.3),
    "hetero-sage": nn.HeteroSAGE(layers=2, hidden=8, norm="none", dropout=0.0),
    "rgat": nn.RGAT(layers=2, hidden=8, heads=2),
    "hgt": nn.HGT(layers=2, hidden=8, heads=2),
}


def graph_of(relation=WRITES, *, given=False) -> TypedGraph:
    """The graph of the other tests; `written_by` has the reversed edges of `writes`."""
    graph = typed_graph()
    edges = {name: {"edge_index": own.edge_index} for name, own in graph.edges.items()}
    edges[TURNED]["edge_index"] = edges[WRITES]["edge_index"][::-1]
    if given:
        rng, count = np.random.default_rng(5), 48
        ends = np.stack([rng.integers(0, SIZES[end], count) for end in (relation[0], relation[2])])
        masks = {f"pair_{name}_mask": np.arange(count) % 3 == i for i, name in enumerate(("train", "val", "test"))}
        edges[relation] |= {"pairs": ends, "pair_y": (np.arange(count) // 3) % 2, **masks}
    return TypedGraph(nodes_of(graph), edges, name="typed")


def nodes_of(graph):
    """The nodes without labels."""
    return {kind: {"num_nodes": own.num_nodes, "x": own.x} for kind, own in graph.nodes.items()}


TASKS = {
    "drawn": Link(embedding=WIDTH, negatives=2, val=0.15, test=0.2, candidates=7, relation="author__writes__paper"),
    "one type": Link(embedding=WIDTH, val=0.15, test=0.2, candidates=7, relation="paper__cites__paper"),
    "given": Link(embedding=WIDTH, candidates=7),
}


def case(kind, parts, how="scattered"):
    graph = graph_of(given=kind == "given")
    part = parts_of(how, graph, parts).astype(np.int32)
    return TASKS[kind].prepared(graph.union, SEED), Assignment(part, parts)


CASES = {kind: partial(case, kind) for kind in TASKS}


def seen_graph(kind) -> TypedGraph:
    """The typed graph without the held-out edges, found with sets of edges."""
    graph, pairs = graph_of(given=kind == "given"), CASES[kind](1)[0].pairs
    if kind == "given":
        return graph
    hidden = {frozenset(ends) for ends in pairs.ends[pairs.split > 0].tolist()}
    hold = {"drawn": (WRITES, TURNED), "one type": (CITES,)}[kind]
    edges = {}
    for name, own in graph.edges.items():
        ends = own.edge_index
        numbers = [(FIRST[name[0]] + j, FIRST[name[2]] + i) for j, i in ends.T.tolist()]
        keep = [name not in hold or i == j or frozenset((i, j)) not in hidden for i, j in numbers]
        edges[name] = ends[:, np.array(keep, dtype=bool)]
    return TypedGraph(nodes_of(graph), edges)


def negatives(kind, stream, pair, first, count):
    """`count` papers drawn for a pair; between papers, none of them its first node."""
    low, size = FIRST["paper"], SIZES["paper"]
    found = []
    for number in range(count):
        draw = hashed(hashed(pair, key_of(*stream)), number)
        inside = kind == "one type"
        node = low + draw % (size - inside)
        found.append(node + (inside and node >= first))
    return found


def scored(kind, split, stream, count):
    """Pairs of a split in the union's numbers, with labels, and with drawn ones."""
    pairs, rows = CASES[kind](1)[0].pairs, []
    for number in np.flatnonzero(pairs.split == split).tolist():
        u, v = pairs.ends[number].tolist()
        rows.append((u, v, int(pairs.y[number])))
        rows += [] if kind == "given" else [(u, w, 0) for w in negatives(kind, stream, number, u, count)]
    return torch.tensor(rows)


def objective(kind):
    def loss(step, out):
        u, v, y = scored(kind, 0, (SEED, step, "training"), TASKS[kind].negatives).unbind(1)
        return F.binary_cross_entropy_with_logits((out[u] * out[v]).sum(1), y.double())

    return loss


def oracle(kind, spec):
    graph = seen_graph(kind)
    dense = DenseTyped(graph, spec, width=WIDTH)
    return trained(graph.union, dense, STEPS, objective=objective(kind)), dense  # type: ignore[arg-type]


def traces_of(ranks, kind, spec, run=run_threads, how="scattered", metric="roc_auc", **options):
    body = partial(train_trace, options={"task": TASKS[kind], "metric": metric}, **options)
    return run(ranks, body, partial(case, kind, how=how), spec, STEPS)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("model", SPECS)
def test_any_number_of_ranks_equals_dense_equations(model, kind):
    want, dense = oracle(kind, SPECS[model])
    dense.model.eval()
    logits = dense.logits(STEPS).detach()
    for ranks in (1, 2, 3, 4):
        for how in ("scattered", "a type on one rank", "types apart") if ranks == 3 else ("scattered",):
            traces = traces_of(ranks, kind, SPECS[model], how=how)
            assert_typed(traces, want)
            torch.testing.assert_close(whole_logits(traces, NODES), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", TASKS)
def test_live_rows_change_nothing(kind, monkeypatch):
    monkeypatch.setattr("fullgraph.placement.holding.live.WORTH", 1.0)
    spec = SPECS["hetero-sage"]
    traces = traces_of(3, kind, spec, placement=partial(Partitioned, hops=spec.hops))
    assert_typed(traces, oracle(kind, spec)[0])


def test_processes_equal_dense_equations():
    assert_typed(traces_of(3, "drawn", SPECS["rgcn"], run=run_processes), oracle("drawn", SPECS["rgcn"])[0])


def test_rows_of_pairs_are_fresh_where_halos_are_late():
    """All ranks agree on a loss that a late halo changes; with frozen weights it would be the exact one."""
    late = [traces_of(3, "drawn", SPECS["hetero-sage"], wire=Wire(schedule=Pipelined())) for _ in range(2)]
    torch.testing.assert_close(late[0][0]["losses"], late[1][2]["losses"], rtol=0, atol=0)
    exact = oracle("drawn", SPECS["hetero-sage"])[0][0]
    assert not torch.allclose(late[0][0]["losses"], exact, rtol=1e-6)


@pytest.mark.parametrize("kind", TASKS)
def test_scores_are_those_of_the_rows(kind):
    metrics = pytest.importorskip("sklearn.metrics")
    found = {}
    for metric in ("roc_auc", "mrr"):
        traces = [trace for ranks in (1, 3) for trace in traces_of(ranks, kind, SPECS["hetero-sage"], metric=metric)]
        found[metric], rows = traces[0]["scores"], whole_logits(traces[:1], NODES)
        assert all(trace["scores"] == pytest.approx(found[metric], abs=1e-9) for trace in traces)
    pairs = CASES[kind](1)[0].pairs
    for number, split in enumerate(("val", "test"), start=1):
        u, v, y = scored(kind, number, (SEED, 0, f"scored {split}"), 1).unbind(1)
        wanted = metrics.roc_auc_score(y, (rows[u] * rows[v]).sum(1))
        assert found["roc_auc"][split] == pytest.approx(float(wanted), abs=1e-9)
        turned = []
        for pair in np.flatnonzero((pairs.split == number) & (pairs.y == 1)).tolist():
            first, second = pairs.ends[pair].tolist()
            among = [second, *negatives_of(kind, split, pair, first)]
            edge, *rest = (rows[first] @ rows[among].T).tolist()
            turned.append(1 / (1 + sum(s > edge for s in rest) + sum(s == edge for s in rest) / 2))
        assert found["mrr"][split] == pytest.approx(np.mean(turned), abs=1e-9)


def negatives_of(kind, split, pair, first):
    return negatives(kind, (SEED, 0, f"candidates {split}"), pair, first, 7)


def test_a_run_resumed_is_the_same_run():
    config = TrainConfig(epochs=4, checkpoint_every=1, seed=SEED, dtype="float64", task=TASKS["drawn"], eval_every=2)
    run = (CASES["drawn"], SPECS["rgcn"], config, Wire(schedule=Pipelined()))
    for (losses, saved), *again in run_threads(3, resumed_epochs, *run):
        for start, (resumed, kept) in enumerate(again):
            assert resumed == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


# --- pairs


def test_held_out_edges_leave_the_relation_and_its_twins():
    before, (after, _) = graph_of().union, CASES["drawn"](1)
    hidden = {frozenset(ends) for ends in after.pairs.ends[after.pairs.split > 0].tolist()}
    assert hidden
    names = list(graph_of().edges)
    for number, name in enumerate(names):
        old, new = (
            sorted(union.edge_index[:, union.fields.edges["edge_type"] == number].T.tolist())
            for union in (before, after)
        )
        held = name in (WRITES, TURNED)
        assert new == [arc for arc in old if not held or frozenset(arc) not in hidden]
        assert after.types.relations[number].edges == len(new)
    authors, papers = after.pairs.ends.T
    assert authors.max() < SIZES["author"] <= papers.min()
    assert papers.max() < SIZES["author"] + SIZES["paper"]
    assert any("paper__written_by__author too" in note for note in after.notes)


def test_pairs_survive_files_and_pyg(tmp_path):
    graph = graph_of(given=True)
    save_npz(graph, tmp_path / "pairs.npz")
    again = load_typed(tmp_path / "pairs.npz")
    assert again.pairs[0] == WRITES
    for name in ("ends", "y", "split"):
        np.testing.assert_array_equal(getattr(again.pairs[1], name), getattr(graph.pairs[1], name))
    np.testing.assert_array_equal(again.union.pairs.ends[:, 1], graph.pairs[1].ends[:, 1] + SIZES["author"])
    assert graph.with_reverses().pairs == graph.pairs


def test_the_three_data_of_random_link_split(tmp_path):
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    from torch_geometric.transforms import RandomLinkSplit

    split = RandomLinkSplit(num_val=0.2, num_test=0.2, edge_types=[WRITES], rev_edge_types=[TURNED])
    three = split(graph_of().to_pyg())
    graph = TypedGraph.from_pyg(three)
    relation, pairs = graph.pairs
    assert relation == WRITES
    assert np.bincount(pairs.split).tolist() == [len(data[WRITES].edge_label) for data in three]
    wanted = torch.cat([data[WRITES].edge_label_index for data in three], 1)
    np.testing.assert_array_equal(pairs.ends.T, wanted.numpy())
    assert graph.edges[WRITES].num_arcs == three[0][WRITES].edge_index.shape[1]
    run = fg.train(three, model=SPECS["rgcn"], parts=2, epochs=2, report=False, out=tmp_path / "run")
    assert run.predictions.shape == (len(pairs),)


@pytest.mark.parametrize(
    ("task", "given", "text"),
    [
        (Link(), False, "typed: no pairs; name the relation to learn, -t relation=SOURCE__RELATION__TARGET, from auth"),
        (Link(relation="author__writess__paper"), False, "'author__writess__paper' is not a relation .did you mean"),
        (Link(relation="paper__cites__paper"), True, "has pairs of author__writes__paper, and -t relation=paper__ci"),
        (Link(relation="nobody__knows__paper"), False, "leave a split empty"),
    ],
)
def test_a_relation_that_cannot_be_learned_is_one_line(task, given, text):
    union = graph_of(given=given).union
    with pytest.raises(InputError, match=text):
        task.prepared(union, 0)


def test_pairs_that_do_not_fit_are_one_line():
    graph = graph_of(given=True)
    nodes = {kind: {"num_nodes": own.num_nodes} for kind, own in graph.nodes.items()}
    masks = {f"pair_{name}_mask": np.arange(3) == i for i, name in enumerate(("train", "val", "test"))}
    ends = np.array([[0, 1, 2], [0, 1, SIZES["paper"]]])
    empty = {name: np.empty((2, 0), int) for name in graph.edges}
    with pytest.raises(InputError, match="author__writes__paper: pairs holds the node id 23, but ids run from 0 to 22"):
        TypedGraph(nodes, {**empty, WRITES: {"edge_index": empty[WRITES], "pairs": ends, **masks}})
    two = {name: {"edge_index": empty[name], "pairs": ends[:, :1], **masks} for name in (WRITES, CITES)}
    with pytest.raises(InputError, match="pairs are on 2 relations, author__writes__paper and paper__cites__paper"):
        TypedGraph(nodes, {**empty, **two})
    with pytest.raises(InputError, match="demo has no relations: leave out -t relation=a__b__c"):
        fg.train("demo", task=Link(relation="a__b__c"), epochs=1)


def test_train_and_predict_from_the_shell(say, tmp_path):
    save_npz(graph_of(), tmp_path / "typed.npz")
    options = ("--task", "link", "-t", "relation=author__writes__paper", "-t", "embedding=6", "--hidden", "8")
    code, _, err = say("train", "typed.npz", *options, "--epochs", "4", "--parts", "3", "--out", "run")
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["model"], result["task"], result["metric"]) == ("hetero-sage", "link", "roc_auc")
    pairs, rows = (np.load(tmp_path / "run" / "predictions" / f"{name}.npy") for name in ("pairs", "embeddings"))
    edges = set(map(tuple, graph_of().edges[WRITES].edge_index.T.tolist()))
    assert set(map(tuple, pairs.tolist())) == edges
    assert rows.shape == (NODES, 6)
    scores = np.load(tmp_path / "run" / "predictions" / "scores.npy")
    products = (rows[pairs[:, 0]] * rows[pairs[:, 1] + SIZES["author"]]).sum(1)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-products)), rtol=1e-4, atol=1e-5)
    assert say("partition", "typed.npz", *options[:4], "--out", "parts")[0] == 0
    assert "pairs" in say("inspect", "parts")[1]
    assert say("train", "parts", *options[:2], *options[4:], "--epochs", "2", "--out", "cut")[0] == 0
    for command, words in (
        (("train", "typed.npz", "--task", "link"), "name the relation to learn"),
        (("partition", "typed.npz", "-t", "val=0.1"), "name the task, as in --task link -t val=0.1"),
        (("train", "typed.npz", *options, "--strategy", "gnnpipe"), "strategy gnnpipe cannot train on typed graphs"),
    ):
        code, _, err = say(*command, "--out", "no")
        assert code == 2
        assert words in err
        assert not (tmp_path / "no").exists()
