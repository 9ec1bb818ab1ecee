"""Who sends what to whom: stateless routes, each with its transpose."""

from fullgraph.plan.halo import HaloRoute, Route

__all__ = ["HaloRoute", "Route"]
