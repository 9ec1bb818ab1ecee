"""Strategy, run and widths alone determine what layers send and what is known of their input."""

from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.axes import STRATEGIES
from fullgraph.exchange import Wire
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.partition import cut_parts
from fullgraph.placement import Mixture, Partitioned, Pipeline, Rules
from fullgraph.remarks import lines_of, plans_of
from fullgraph.run import Run
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.exact.test_live_rows import few_trained
from tests.support.bodies import trainer_of
from tests.support.cases import CASES

NARROWER, EQUAL, WIDER = LayerShape(8, 3), LayerShape(8, 8), LayerShape(3, 8)


@pytest.mark.parametrize("sends", ["mapped", "narrow", "input"])
@pytest.mark.parametrize(("shape", "narrow"), [(NARROWER, True), (EQUAL, False), (WIDER, False)])
def test_narrow_rows_cross_mapped_unless_the_input_must_cross(sends, shape, narrow):
    plan = Rules(sends=sends).plan(1, shape, known="", sparse=False, rows=5)
    mapped = narrow and sends != "input"
    width = shape.mapped_width if mapped else shape.in_width
    assert plan == LayerPlan(layer=1, sends="mapped" if mapped else "input", width=width, rows=5)
    assert plan.maps_first == mapped


def test_attention_maps_rows_of_equal_width_and_tiles_always():
    shapes = [LayerShape(shape.in_width, shape.mapped_width, attends=True) for shape in (NARROWER, EQUAL, WIDER)]

    def sent(rules):
        return [rules.plan(1, shape, known="", sparse=False, rows=5).sends for shape in shapes]

    assert sent(Rules()) == ["mapped", "mapped", "input"]
    assert sent(Rules(sends="input")) == ["input"] * 3
    assert sent(Rules(sends="input", whole_rows=False)) == ["mapped"] * 3


def test_sparse_rows_cross_mapped_and_known_ones_not_at_all():
    plan = partial(Rules(sends="input").plan, 0, WIDER, rows=5)
    assert plan(known="", sparse=True) == LayerPlan(layer=0, sends="mapped", width=8, rows=5)
    for known, first in (("aggregate", False), ("halo", True)):
        found = plan(known=known, sparse=True)
        assert (found, found.maps_first) == (LayerPlan(layer=0, sends="nothing", known=known, rows=5), first)


@pytest.mark.parametrize(
    ("sparse", "attends", "known"),
    [(False, False, ["aggregate"] * 3), (True, False, ["", "halo", "halo"]), (False, True, ["", "halo", "halo"])],
)
def test_what_is_known_ahead(sparse, attends, known):
    def found(halo_is_less=True, **options):
        asked = {"sparse": sparse, "attends": attends, "halo_is_less": lambda: halo_is_less}
        return [Rules(sends=sends, **options).known_ahead(**asked) for sends in ("mapped", "narrow", "input")]

    assert found() == known
    assert found(halo_is_less=False) == [each.replace("halo", "aggregate") if sparse else each for each in known]
    assert found(keep_halo=False) == [each.replace("halo", "" if attends else "aggregate") for each in known]
    assert found(precompute=False) == found(encodes=True) == [""] * 3


SPEC = nn.GraphSAGE(layers=3, hidden=6, dropout=0.0)


@pytest.mark.parametrize("placement", [Partitioned, Mixture, partial(Pipeline, chunks=1)], ids=["parts", "mix", "pipe"])
@pytest.mark.parametrize("make", [few_trained, CASES["sparse"]], ids=["few trained", "sparse"])
def test_all_ranks_plan_alike_and_as_one_rank_does_before_they_start(make, placement):
    def body(transport):
        placed = partial(placement, hops=SPEC.hops)
        shard = trainer_of(transport, make, SPEC, TrainConfig(), Wire(), placement=placed).shard
        return shard.executor.plans(SPEC.outline(shard.in_width, shard.num_classes))

    one, other = run_threads(2, body)
    model = SPEC.outline(*(lambda facts: (facts.features, facts.classes))(cut_parts(*make(1), 0).manifest.graph))
    rank = placement(hops=SPEC.hops, dtype=torch.float64)
    assert one == other == rank.plans(rank.graph_of(cut_parts(*make(1), 0)), model, SPEC.aggregation)


def test_lines_of_a_run():
    graph = few_trained(1)[0]
    alone = lines_of(Run(model=SPEC, strategy=STRATEGIES.make("none")), graph)
    assert all("no edges between parts, sends nothing" in line for line in alone)
    run = Run(model=SPEC, strategy=STRATEGIES.make("sylvie-a"))
    whole, near, last = (plan.rows for plan in plans_of(run, graph))
    assert whole > near > last
    assert lines_of(run, graph) == [
        f"layer 0: aggregated input known ahead, sends nothing, {whole:,} rows",
        f"layer 1: sends input, 6 columns, 1 bit, 1 step late, {near:,} rows",
        f"layer 2: sends input, 6 columns, 1 bit, 1 step late, {last:,} rows",
    ]
