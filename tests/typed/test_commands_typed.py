"""Commands on typed graphs: inspect, partition, train, resume, predict; what they refuse is one line."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph import nn
from fullgraph.data import TypedGraph, save_npz
from fullgraph.errors import InputError
from fullgraph.partition import open_part, read_manifest
from tests.typed.oracle import RELATIONS, SIZES, typed_graph

SMALL = ("--hidden", "8", "--layers", "2", "--epochs", "6", "--eval-every", "2")


@pytest.fixture
def graph(tmp_path):
    save_npz(typed_graph(), tmp_path / "typed.npz")
    return tmp_path / "typed.npz"


def refused(done, *words):
    code, _, err = done
    lines = [line for line in err.splitlines() if line.startswith("fullgraph: error: ")]
    assert code == 2, err
    assert len(lines) == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in lines[0], (word, lines[0])


def test_inspect_names_types_and_relations(say, graph):
    code, out, _ = say("inspect", graph, "--parts", "2")
    assert code == 0
    for kind, size in SIZES.items():
        assert f"{kind}: {size} node" in out
    for (source, name, target), count in RELATIONS.items():
        assert f"{source}__{name}__{target}: {count} edges" in out
    assert "4 classes on 23 nodes, type paper" in out
    code, out, _ = say("inspect", graph, "--json")
    about = json.loads(out)["graph"]
    assert [kind["name"] for kind in about["types"]] == list(SIZES)
    assert about["target"] == "paper"


def test_shards_keep_types_and_relations(say, graph, tmp_path):
    for parts in ("3", "2"):  # the second call replaces what the first one wrote
        assert say("partition", graph, "--parts", parts, "--out", "parts")[0] == 0
    facts = read_manifest(tmp_path / "parts").graph
    assert [(kind.name, kind.nodes, kind.features) for kind in facts.types.nodes] == [
        ("author", 17, 6), ("paper", 23, 20), ("venue", 5, 0), ("nobody", 0, 0), ("topic", 9, 0),
    ]  # fmt: skip
    assert [(r.source, r.name, r.target) for r in facts.types.relations] == list(RELATIONS)
    assert facts.types.target == "paper"
    held = [open_part(tmp_path / "parts", rank) for rank in range(2)]
    counts = sum(torch.bincount(part.edge_fields["edge_type"].long(), minlength=len(RELATIONS)) for part in held)
    assert counts.tolist() == list(RELATIONS.values())
    kinds = sum(torch.bincount(part.node_fields["node_type"].long(), minlength=len(SIZES)) for part in held)
    assert kinds.tolist() == list(SIZES.values())
    out = say("inspect", "parts")[1]
    assert "paper__cites__paper: 40 edges" in out
    assert say("train", "parts", "--model", "rgcn", *SMALL, "--out", "run")[0] == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_train_resume_and_predict_from_the_shell(say, graph, tmp_path, parts):
    code, _, err = say("train", graph, "--model", "rgcn", "--bases", "2", *SMALL, "--parts", parts, "--out", "run")
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["model"], result["ranks"], result["metric"]) == ("rgcn", parts, "accuracy")
    predicted = np.load(tmp_path / "run" / "predictions" / "classes.npy")
    assert predicted.shape == (SIZES["paper"],)
    assert np.load(tmp_path / "run" / "predictions" / "ids.npy").tolist() == [f"p{i}" for i in range(SIZES["paper"])]
    assert say("train", "--resume", "run", "--epochs", "9")[0] == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"] == 9
    assert say("predict", "run", "--embeddings", "2", "--out", "there")[0] == 0
    assert np.load(tmp_path / "there" / "embeddings.npy").shape == (SIZES["paper"], 8)
    np.testing.assert_array_equal(
        np.load(tmp_path / "there" / "classes.npy"), np.load(tmp_path / "run" / "predictions" / "classes.npy")
    )


def test_ranks_and_forms_give_the_same_run(tmp_path):
    """Real processes on 1 and 3 ranks, from a TypedGraph and from a HeteroData: one result."""
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    graph, options = typed_graph(), {"epochs": 6, "dtype": "float64", "eval_every": 2, "report": False}
    spec = nn.HeteroSAGE(layers=2, hidden=8, dropout=0.3)
    one = fg.train(graph, model=spec, parts=1, out=tmp_path / "one", **options)
    data = graph.to_pyg()
    assert data["venue"].num_nodes == SIZES["venue"]
    many = fg.train(data, model="hetero-sage", parts=3, out=tmp_path / "many", epochs=2, report=False)
    assert many.predictions.shape == (SIZES["paper"],)
    three = fg.train(graph, model=spec, parts=3, out=tmp_path / "three", **options)
    losses = [[record.loss for record in run.metrics] for run in (one, three)]
    np.testing.assert_allclose(*losses, rtol=1e-9)
    np.testing.assert_allclose(one.probabilities, three.probabilities, rtol=1e-5, atol=1e-7)
    weight = three.model.input.embedding.weight
    assert weight.shape == (SIZES["venue"] + SIZES["topic"], 8)
    torch.testing.assert_close(weight, one.model.input.embedding.weight, rtol=1e-9, atol=1e-9)


def test_a_typed_graph_without_a_model_gets_one(say, graph, tmp_path):
    assert say("train", graph, "--hidden", "4", "--epochs", "2", "--out", "run")[0] == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["name"] == "hetero-sage"


def test_a_homogeneous_graph_can_be_given_as_typed(tmp_path):
    typed = TypedGraph.of(fg.load("sbm:nodes=60,classes=3,features=4"))
    run = fg.train(typed, model=nn.RGCN(layers=2, hidden=8), epochs=3, out=tmp_path / "run", report=False)
    assert run.predictions.shape == (60,)


@pytest.mark.parametrize("labels", ["y", "several"])
def test_a_split_is_drawn_among_the_target_types_nodes(labels):
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3 if labels == "y" else (rng.random((30, 3)) < 0.5).astype(np.float32)
    graph = TypedGraph(
        {"a": {"num_nodes": 40}, "b": {"num_nodes": 30, "y": y}}, {("a", "r", "b"): np.zeros((2, 1), int)}
    )
    drawn = graph.union.with_split("random:60/20/20", 1)
    assert [int(m.sum()) for m in (drawn.train_mask, drawn.val_mask, drawn.test_mask)] == [18, 6, 6]
    assert not drawn.train_mask[:40].any()
    np.testing.assert_array_equal(drawn.train_mask, graph.with_split("random:60/20/20", 1).union.train_mask)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--model", "gcn"),
            ("is a typed graph (5 node types and 8 relations)", "use --model rgcn, hetero-sage, rgat, hgt"),
        ),
        (("--model", "rgcn", "--strategy", "gnnpipe"), ("strategy gnnpipe cannot train on typed graphs: use vanilla",)),
        (("--model", "rgcn", "--strategy", "mixgcn"), ("strategy mixgcn cannot train on typed graphs: use vanilla",)),
        (("--model", "rgcn", "--strategy", "auto"), ("strategy auto cannot train on typed graphs: use vanilla",)),
        (("--model", "hgt", "--strategy", "bns"), ("attention by relation needs all rows of the halo",)),
        (("--model", "hgt", "--heads", "3"), ("heads=3: must divide hidden=128",)),
        (("--model", "rgcn", "--blocks", "3"), ("blocks=3: must divide hidden=128",)),
        (("--model", "rgcn", "--blocks", "4", "--bases", "2"), ("bases=2 and blocks=4: give one of them",)),
        (("--model", "rgcn", "--inductive"), ("inductive training keeps only the training nodes",)),
        (("--model", "rgcn", "--features", "standard"), ("features 'standard' is fitted on training nodes",)),
        (("--task", "link"), ("no pairs; name the relation to learn, -t relation=SOURCE__RELATION__TARGET",)),
        (("--model", "hetero-sage", "--bases", "3"), ("--bases is an option of --model rgcn, not of hetero-sage",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0].startswith("--") else "",
)
def test_what_cannot_train_on_a_typed_graph(say, graph, tmp_path, options, words):
    refused(say("train", graph, *options, "--parts", "2", "--out", "run"), *words)
    assert not (tmp_path / "run").exists()


def test_typed_models_are_for_typed_graphs(say):
    refused(say("train", "demo", "--model", "rgcn"), "has one node type and one relation", "use --model sage")


def test_learned_rows_are_not_for_another_graph(say, graph, tmp_path):
    assert say("train", graph, *SMALL, "--out", "run")[0] == 0
    refused(say("predict", "run", "--graph", graph, "--out", "there"), "has learned rows for venue, topic")
    assert not (tmp_path / "there").exists()


def test_reverses_are_added_when_asked_for(say, tmp_path):
    nodes = {"a": {"num_nodes": 6}, "b": {"x": np.eye(9, 3), "y": np.arange(9) % 2}}
    ends = np.stack([np.arange(12) % 6, np.arange(12) % 9])
    graph = TypedGraph(nodes, {("a", "to", "b"): ends})
    save_npz(graph, tmp_path / "one.npz")
    options = ("--split", "random:40/30/30", "--reverses")
    assert say("train", "one.npz", *SMALL, *options, "--out", "run")[0] == 0
    facts = read_manifest(tmp_path / "run" / "shards").graph
    assert [relation.name for relation in facts.types.relations] == ["to", "rev_to"]
    assert facts.arcs == 24
    assert say("partition", "one.npz", *options, "--out", "parts")[0] == 0
    assert read_manifest(tmp_path / "parts").graph.types == facts.types
    refused(say("train", "parts", "--reverses"), "parts has its relations", "partition` again with --reverses")
    refused(say("train", "demo", "--reverses"), "demo has no relations, and reverses are for typed graphs")
    twice = fg.train(graph, reverses=True, split="random:40/30/30", epochs=1, report=False, out=tmp_path / "twice")
    assert twice.result["graph"]["edges"] == 24


def test_shards_of_a_typed_graph_are_for_training(say, graph):
    assert say("partition", graph, "--parts", "2", "--out", "parts")[0] == 0
    refused(say("plan", "parts", "--parts", "2"), "parts is a typed graph (5 node types, 8 relations)", "docs/typed.md")
    with pytest.raises(InputError, match="typed is a typed graph"):
        fg.open_shard(typed_graph().union, aggregation="gcn")


PAPERS = {"p/x": np.ones((4, 2), np.float32), "p/y": np.arange(4) % 2, "p/train_mask": np.arange(4) < 2}
PAPERS |= {"p/val_mask": np.arange(4) == 2, "p/test_mask": np.arange(4) == 3, "a/num_nodes": np.int64(3)}
EDGE = np.array([[0, 2], [1, 3]])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a__r__q/edge_index": EDGE}, ("a__r__q ends at 'q', which is not a node type", "add its x or num_nodes")),
        ({"a__r__p/edge_index": EDGE + 2}, ("a__r__p", "4")),
        (
            {"a__r__p/edge_index": EDGE - 1},
            ("a__r__p: edge_index holds the source -1, but a has 3 nodes", "fix the ids"),
        ),
        ({"a_r_p/edge_index": EDGE}, ("a_r_p/edge_index: name a relation SOURCE__RELATION__TARGET",)),
        ({"a__r__p/edge_index": EDGE, "p/x": np.ones((4, 0))}, ("p: x has shape (4, 0)", "at least one of each")),
        ({"a__r__p/edge_index": EDGE, "a/x": np.ones((5, 2), np.float32)}, ("num_nodes is 3 for 5 rows of x",)),
        (
            {"p/x_data": np.ones(4), "p/x_indices": np.zeros(4, int), "p/x_indptr": np.arange(5), "p/x_shape": [4, 9]},
            ("p has both x and x_data (2 and 9 columns)", "give a type its features once"),
        ),
        ({"a/y": np.arange(3)}, ("labels or masks are on 2 types", "keep those of one type")),
        ({"p/train_mask": np.ones(5, bool)}, ("p: train_mask has shape (5,) for the 4 nodes", "give [nodes]")),
        ({"p/val_mask": np.arange(4) < 2}, ("p: train_mask and val_mask overlap (node 0)",)),
        ({"p/y": np.arange(5)}, ("p: y has shape (5,) for the 4 nodes of x",)),
        ({"p/names": np.arange(3)}, ("p: names has 3 entries for the 4 nodes",)),
        ({"a/num_nodes": np.float64(3)}, ("a: num_nodes is float64 (): give one whole number",)),
        ({"p/x": np.full((4, 2), np.nan)}, ("p: x holds NaN or infinity (node 0, column 0): replace it",)),
        ({"p/x": np.array([["a", "b"]] * 4)}, ("p: x has the type <U1: give real numbers",)),
        ({"a__r__p/edge_index": EDGE * 1.0}, ("a__r__p: edge_index has the type float64", "have to be integers")),
        ({"a__r__p/edge_index": np.zeros((3, 4), int)}, ("a__r__p: edge_index has shape (3, 4): give [2, edges]",)),
        ({"a__r__p/edge_index": EDGE, "a__r__p/edge_weight": np.ones(3)}, ("a__r__p/edge_weight is (3,)",)),
        ({"a__r__p/edge_index": EDGE, "a__r__p/edge_weight": [1, np.nan]}, ("a__r__p: edge_weight holds NaN",)),
        ({"a__r__p/edge_idx": EDGE}, ("a__r__p has edge_idx (did you mean edge_index?) and no edge_index: add",)),
        ({"a__r/edge_index": EDGE}, ("relation 'a__r': give (source type, name, target type)", "SOURCE__RELATION")),
        ({"a__r-s__p/edge_index": EDGE}, ("relation 'a__r-s__p'", "letters, digits and single underscores")),
        ({"a__r__p/edge_index": EDGE, "a__r__p/pairs": EDGE}, ("a__r__p: pairs lacks pair_train_mask, pair_val_mask",)),
    ],
)
@pytest.mark.parametrize("command", ["train", "inspect"])
def test_a_bad_typed_file_is_one_line(say, tmp_path, arrays, words, command):
    np.savez(tmp_path / "bad.npz", **{**PAPERS, **arrays})
    refused(say(command, "bad.npz"), "bad.npz", *words)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (["p/y"], ("bad lacks y: training needs labels and three masks",)),
        (["p/val_mask"], ("bad lacks val_mask: training needs",)),
        (["p/train_mask", "p/val_mask", "p/test_mask"], ("(--split random:60/20/20 draws them)",)),
    ],
)
def test_what_training_needs_is_named(say, tmp_path, without, words):
    arrays = {key: array for key, array in PAPERS.items() if key not in without}
    np.savez(tmp_path / "bad.npz", **arrays, **{"a__r__p/edge_index": EDGE})
    assert say("inspect", "bad.npz")[0] == 0
    refused(say("train", "bad.npz"), *words)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_features_of_edges_are_said_to_be_unused(say, tmp_path):
    arrays = {"a__r__p/edge_index": EDGE, "a__r__p/edge_attr": np.ones((2, 3))}
    np.savez(tmp_path / "attr.npz", **PAPERS, **arrays)
    code, _, err = say("train", "attr.npz", *SMALL, "--out", "run")
    assert code == 0
    assert "note: --model hetero-sage does not use the edge_attr of the graph's edges" in err


def test_real_numbers_are_learned(say, tmp_path):
    """Regression: with one rank and with three, the same values."""
    values = np.random.default_rng(0).standard_normal((23, 2))
    nodes = {kind: {"num_nodes": own.num_nodes, "x": own.x} for kind, own in typed_graph().nodes.items()}
    masks = {f"{name}_mask": np.arange(23) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    nodes["paper"] |= {"y": values, **masks}
    graph = TypedGraph(nodes, {name: own.edge_index for name, own in typed_graph().edges.items()})
    options = {"model": nn.HGT(layers=2, hidden=8, heads=2), "epochs": 5, "dtype": "float64", "report": False}
    one, three = (fg.train(graph, parts=parts, out=tmp_path / f"{parts}", **options) for parts in (1, 3))
    assert (one.result["task"], one.result["metric"]) == ("regression", "rmse")
    assert one.predictions.shape == (23, 2)
    np.testing.assert_allclose(one.predictions, three.predictions, rtol=1e-5, atol=1e-6)


def test_a_users_model_of_one_type_is_refused():
    with pytest.raises(InputError, match="the width of the input is -1, for lazy layers"):
        fg.train(typed_graph(), model=torch.nn.Linear)
    with pytest.raises(InputError, match="name the arguments x_dict and edge_index_dict"):
        fg.train(typed_graph(), model=torch.nn.Identity())


@pytest.mark.timeout(300)
def test_the_page_runs_from_top_to_bottom(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "typed.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = first + second
    (commands,) = re.findall(r"```\n(fullgraph.*?)```", page, re.DOTALL)
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    lines = [["-c", program], *(["-m", *shlex.split(line)] for line in commands.strip().splitlines())]
    for line in lines:
        done = subprocess.run([sys.executable, *line], cwd=tmp_path, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr
    assert len(lines) == 6
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")]
    assert sorted(result["model"] for result in results) == [
        "hetero-sage",
        "hetero-sage",
        "hetero-sage",
        "rgcn",
        "rgcn",
    ]
    assert [result["task"] for result in results].count("link") == 1
