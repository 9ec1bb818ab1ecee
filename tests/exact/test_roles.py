"""Ranks that only aggregate, or only update: equal to one process, bytes by the formula, bad roles refused."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fullgraph import api, nn, recipes
from fullgraph.errors import InputError
from fullgraph.partition import partition
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting
from tests.support import assert_same, dense_trace, random_graph, train_trace, trainer_of

SPECS = {
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=8, dropout=0.3, input_dropout=True, norm="batch"),
    "gat": nn.GAT(layers=3, hidden=15, heads=3, dropout=0.5, input_dropout=True),
}
MIXES = ["sparse,dense", "dense,both", "both,sparse,dense", "sparse,dense,sparse,dense"]


def laid(roles, blocks):
    """The placement and the case of a recipe."""
    recipe = recipes.mixgcn(blocks=blocks, roles=roles)

    def case(parts, **options):
        graph = random_graph(nodes=61, features=7, classes=3, directed=True, weighted=True)
        return graph, partition(graph, parts, recipe.partitioner())

    return partial(replace, recipe.layout()), case


@pytest.mark.parametrize("roles", MIXES)
@pytest.mark.parametrize("model", SPECS)
def test_roles_equal_dense_algebra(model, roles):
    (placement, case), ranks = laid(roles, blocks=2), len(roles.split(","))
    traces = run_threads(ranks, partial(train_trace, placement=placement), case, SPECS[model])
    assert_same(traces, *dense_trace(case(ranks)[0], SPECS[model]))
    for role, trace in zip(roles.split(","), traces, strict=True):
        assert (len(trace["ids"]) == 0) == (role == "sparse")


def sent(transport, roles, spec):
    """Numbers of one step by channel, and the columns of the last layer, on this rank."""
    placement, case = laid(roles, blocks=3)
    numbers = Counter()

    def count(key, nbytes):
        numbers[key.channel.split("/block")[0]] += nbytes // 8

    counting = Counting(transport, count)
    trainer = trainer_of(counting, case, spec, TrainConfig(epochs=1, dtype="float64"), placement=placement)
    numbers.clear()
    trainer.train_step()
    return Counter({channel: n for channel, n in numbers.items() if channel.startswith("tiles/")})


@pytest.mark.parametrize("roles", MIXES)
def test_bytes_equal_the_formula(roles):
    names = np.array(roles.split(","))
    graph, assignment = laid(roles, 3)[1](len(names))
    rows = np.bincount(assignment.part, minlength=len(names))
    workers = np.flatnonzero(names != "dense")

    def volume(width):
        columns = np.zeros(len(names), int)
        columns[workers] = [len(share) for share in np.array_split(np.arange(width), len(workers))]
        return graph.num_nodes * width - int(rows @ columns)

    total = sum(run_threads(len(names), sent, roles, nn.GCN(layers=3, hidden=8)), Counter())
    assert sum(total.values()) == 4 * (volume(8) + volume(3))
    total = sum(run_threads(len(names), sent, roles, nn.GAT(layers=2, hidden=8, heads=2)), Counter())
    scores = 2 * 2 * sum(graph.num_nodes - int(rows[rank]) for rank in workers)
    assert sum(total.values()) == 4 * (volume(8) + volume(2 * 3)) + 2 * 2 * scores


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"roles": "both,dens"}, ["dens", "sparse, dense, both"]),
        ({"roles": "dense,dense"}, ["aggregate", "sparse or both"]),
        ({"roles": "sparse,sparse"}, ["update", "dense or both"]),
        ({"roles": "sparse,dense,dense"}, ["3 roles for 2 ranks"]),
        ({"devices": "cpu"}, ["1 devices for 2 ranks"]),
        ({"devices": "cpu,tpu7"}, ["'tpu7'", "cuda:0"]),
        ({"blocks": 0}, ["blocks=0", "at least 1"]),
    ],
)
def test_bad_options_are_refused_before_ranks_start(options, words, tmp_path):
    with pytest.raises(InputError) as caught:
        api.train(random_graph(), strategy=recipes.mixgcn(**options), parts=2, out=tmp_path / "run")
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_sparse_rank_takes_no_shards_with_rows(tmp_path):
    placement, _ = laid("sparse,dense", 1)

    def case(parts):
        graph = random_graph()
        return graph, partition(graph, parts, method="contiguous")

    with pytest.raises(InputError, match="rank 0 is sparse, yet owns 30 nodes"):
        run_threads(2, partial(trainer_of, placement=placement), case, SPECS["sage"], TrainConfig())


ON = [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:0")]


def on_either_device(transport):
    """All models with their products on either device, in one set of processes."""
    placement, case = laid("both,sparse", blocks=2)
    return [
        anew(transport, partial(train_trace, device="cuda", placement=partial(placement, aggregate_on=on)), case, spec)
        for spec in SPECS.values()
        for on in ON
    ]


@pytest.mark.gpu
def test_gpu_products_and_updates_on_either_device():
    """Rows on the GPU, the products on either side. Processes: ranks of one process share the GPU's autograd thread."""
    traces = list(zip(*run_processes(2, on_either_device, device="cuda"), strict=True))
    case = laid("both,sparse", blocks=2)[1]
    for spec, on_three in zip(SPECS.values(), zip(*[iter(traces)] * len(ON), strict=True), strict=True):
        wanted = dense_trace(case(2)[0], spec)
        for ranks in on_three:
            assert_same(list(ranks), *wanted)
