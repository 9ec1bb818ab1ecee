"""Routes: which rows each rank sends to which peers. Routes are stateless, and each has a transpose."""

from fullgraph.plan.base import Route, Shape
from fullgraph.plan.by_host import HostRoutes, WholeRoute
from fullgraph.plan.cover import CoverRoute
from fullgraph.plan.halo import HaloRoute
from fullgraph.plan.hop import HopRoute
from fullgraph.plan.spread import SpreadRoute, SpreadSumRoute
from fullgraph.plan.tiles import TileBackRoute, TileRoute

__all__ = [
    "CoverRoute",
    "HaloRoute",
    "HopRoute",
    "HostRoutes",
    "Route",
    "Shape",
    "SpreadRoute",
    "SpreadSumRoute",
    "TileBackRoute",
    "TileRoute",
    "WholeRoute",
]
