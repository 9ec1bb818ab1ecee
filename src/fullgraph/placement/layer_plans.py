"""The rules that make the layers' plans: the only place that decides what a layer sends and what is precomputed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fullgraph.nn import Chain
from fullgraph.nn.layer_plan import Known, LayerPlan, LayerShape
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency

# What a strategy lets layers send. "input": their input, as in the published equations. "mapped": mapped rows if they
# are narrower or the input is sparse. "narrow": mapped rows if they are narrower; sparse input is precomputed.
Crossing = Literal["mapped", "narrow", "input"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of strategy, run and placement that apply to all layers.

    precompute: the run allows precomputed input. encodes: the model maps its input before its first graph layer, so
    that nothing can be precomputed. whole_rows: readers receive whole rows, and can map them. keep_halo: the halo's
    input rows may be kept if they are smaller than their aggregation. cover: layers that sum linearly send the fewest
    rows and sums of rows.
    """

    sends: Crossing = "mapped"
    precompute: bool = True
    encodes: bool = False
    whole_rows: bool = True
    keep_halo: bool = True
    cover: bool = False

    def covers(self, *, reads: bool, drops: bool, late: bool) -> bool:
        """Whether a layer sends sums; not if it reads single rows.

        Sums are made after the dropout, and late rows get it when they are read.
        """
        return self.cover and not reads and not (drops and late)

    @property
    def dense_input(self) -> bool:
        """Whether sparse input rows are made dense, because input rows cross."""
        return self.sends == "input" and not self.precompute and not self.encodes

    def known_ahead(self, *, sparse: bool, attends: bool, halo_is_less: Callable[[], bool]) -> Known:
        """The part of the input that is precomputed. halo_is_less: whether its halo is smaller than its aggregation."""
        if not self.precompute or self.encodes or ((sparse or attends) and self.sends == "mapped"):
            return ""
        if attends:
            return "halo" if self.keep_halo else ""
        return "halo" if sparse and self.keep_halo and halo_is_less() else "aggregate"

    def plan(self, layer: int, shape: LayerShape, *, known: Known, sparse: bool, rows: int) -> LayerPlan:
        """The plan of one layer. known, sparse: facts about its input. rows: the rows that it computes on all ranks."""
        if known:
            return LayerPlan(layer=layer, sends="nothing", known=known, rows=rows)
        if sparse or self._maps_first(shape):
            return LayerPlan(layer=layer, sends="mapped", width=shape.mapped_width, rows=rows)
        return LayerPlan(layer=layer, sends="input", width=shape.in_width, rows=rows)

    def _maps_first(self, shape: LayerShape) -> bool:
        narrow = self.sends != "input"
        if shape.attends:  # it maps before it sums in any case, so the owner may also map rows of equal width
            return not self.whole_rows or (narrow and shape.mapped_width <= shape.in_width)
        return narrow and shape.mapped_width < shape.in_width


def plan_layers(
    rules: Rules, model: nn.Module, *, known: Known, x: Features, nodes: int, computed: Mapping[int, int]
) -> tuple[LayerPlan, ...]:
    """The plans of all layers of a model; () for a module that is no chain of blocks.

    known: what is precomputed of the input rows x. nodes: the number of nodes of the graph. computed: for each layer
    that does not compute all rows, the number of rows that it computes on all ranks.
    """
    if not isinstance(model, Chain):
        return ()
    return tuple(
        rules.plan(
            layer, shape, known=known if first else "", sparse=first and isinstance(x, Adjacency),
            rows=computed.get(layer, nodes),
        )
        for layer, shape, first in model.shapes()
    )  # fmt: skip
