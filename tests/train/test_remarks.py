"""Notes about a run before it starts."""

from dataclasses import replace

import pytest

from fullgraph import api, nn, recipes
from fullgraph.codec import Full
from fullgraph.exchange import Skip
from fullgraph.partition import partition, write_parts
from fullgraph.remarks import _crowd, late_halos, remarks
from fullgraph.run import Run
from fullgraph.train.config import TrainConfig
from tests.support import random_graph


@pytest.fixture
def told(tmp_path):
    def of(run, **options):
        graph = random_graph(**options)
        return remarks(run, write_parts(tmp_path / "shards", graph, partition(graph, run.parts)))

    return of


@pytest.mark.parametrize("model", [nn.GraphSAGE(layers=2), nn.GAT(layers=2)], ids=str)
@pytest.mark.parametrize("strategy", [recipes.varco(), recipes.fixed()], ids=str)
def test_a_strategy_that_changes_nothing_says_so(told, strategy, model):
    (text,) = told(Run(model=model, strategy=strategy, parts=2))
    assert "changes nothing here" in text
    assert "every_layer=true" in text


@pytest.mark.parametrize("strategy", [recipes.varco(), recipes.pipegcn(), recipes.bns()], ids=str)
def test_one_rank_sends_nothing(told, strategy):
    (text,) = told(Run(model=nn.GraphSAGE(layers=3), strategy=strategy))
    assert "give --parts" in text
    assert not late_halos(Run(strategy=strategy))
    assert not told(Run(model=nn.GraphSAGE(layers=3), strategy=recipes.vanilla()))


@pytest.mark.parametrize("strategy", [recipes.varco(), recipes.pipegcn(), recipes.bns()], ids=str)
def test_one_layer_sends_nothing(told, strategy):
    """Whatever is precomputed; no option of the strategy would help."""
    (text,) = told(Run(model=nn.GraphSAGE(layers=1), strategy=strategy, parts=2))
    assert text.endswith("; use more layers")


@pytest.mark.parametrize(
    "change",
    [
        {"model": nn.GraphSAGE(layers=3)},
        {"strategy": recipes.varco(every_layer=True)},
        {"strategy": recipes.vanilla()},
        {"train": TrainConfig(precompute=False)},
        {"model": nn.GAT(layers=3)},
        {"model": nn.GAT(layers=2), "train": TrainConfig(precompute=False)},
    ],
    ids=str,
)
def test_one_that_changes_something_does_not(told, change):
    assert not told(replace(Run(model=nn.GraphSAGE(layers=2), strategy=recipes.varco(), parts=2), **change))


@pytest.mark.parametrize(
    ("model", "words"),
    [(nn.GAT(), "are not used"), (nn.GraphSAGE(), "weighted"), (nn.GIN(), "weighted"), (nn.GCN(), None)],
)
def test_what_edge_weights_do(told, model, words):
    found = told(Run(model=model), weighted=True)
    assert words in found[0] if words else not found, found
    assert not told(Run(model=model), weighted=False)


@pytest.mark.parametrize(
    ("strategy", "late"),
    [
        (recipes.pipegcn(), True),
        (recipes.sylvie_a(), True),
        (recipes.cd_r(), True),
        (recipes.sylvie_a(adaptive=True), True),
        (recipes.free(schedule=Skip(10), codec=Full()), True),
        (recipes.free(schedule=Skip(1), codec=Full()), False),
        (recipes.free(placement="mixture"), False),
        (recipes.pipegcn(smooth="gf"), True),
        (recipes.sancus(), True),
        (recipes.bns(), False),
        (recipes.vanilla(), False),
        (recipes.sylvie_s(), False),
        (recipes.adaqp(), False),
    ],
    ids=str,
)
def test_which_strategies_have_late_rows(tmp_path, strategy, late):
    """No note before a run mentions them: on most graphs they score equally well with any partition."""
    run = Run(model=nn.GraphSAGE(layers=3), strategy=strategy, parts=3)
    assert late_halos(run) is late
    graph = random_graph(90, 1200)
    assert not remarks(run, write_parts(tmp_path / "random", graph, partition(graph, 3, method="random")))


def test_one_column_of_labels(told):
    (text,) = told(Run(), multilabel=True, classes=1)
    assert "labels of shape [nodes, 1]" in text


@pytest.mark.parametrize(
    ("model", "which"),
    [
        (nn.GraphSAGE(norm="batch"), "layers 1 to 2 compute"),
        (nn.GraphSAGE(norm="batch", layers=2), "layer 1 computes"),
        (nn.GraphSAGE(norm="batch", layers=4, linear_layers=1), "layers 1 to 3 compute"),
        (nn.GCNII(norm="batch", layers=2), "layers 1 to 2 compute"),
    ],
    ids=str,
)
def test_batch_norm_says_which_layers_have_no_live_rows(told, model, which):
    (text,) = told(Run(model=model))
    assert f"{which} all rows" in text
    assert "--norm layer" in text


@pytest.mark.parametrize(
    "run",
    [
        Run(model=nn.GraphSAGE(norm="layer")),
        Run(model=nn.GraphSAGE(norm="batch", layers=1)),  # nothing normalises the logits
        Run(model=nn.GraphSAGE(norm="batch"), train=TrainConfig(all_rows=True)),
        Run(model=nn.GraphSAGE(norm="batch"), train=TrainConfig(inductive=True)),
    ],
    ids=["layer norm", "one layer", "all rows", "inductive"],
)
def test_nothing_is_said_where_batch_norm_changes_nothing(told, run):
    assert not told(run)


def test_a_run_says_what_batch_norm_does(tmp_path, capfd):
    """In one line, before it trains."""
    api.train(random_graph(), model=nn.GraphSAGE(norm="batch", hidden=4), epochs=1, out=tmp_path / "run")
    notes = [line for line in capfd.readouterr().err.splitlines() if "batch norm" in line]
    assert len(notes) == 1


def test_many_more_ranks_than_cores_are_told_before_the_run(monkeypatch):
    monkeypatch.setattr("fullgraph.remarks.num_cores", lambda: 2)
    crowd = Run(model=nn.GraphSAGE(), parts=500)
    assert _crowd(crowd) == "500 ranks share 2 cores, so most of an epoch is waiting for a core; use --parts 2"
    assert not _crowd(replace(crowd, parts=16))
    monkeypatch.setattr("fullgraph.remarks.in_job", lambda: True)  # the ranks may be on many machines
    assert not _crowd(crowd)
