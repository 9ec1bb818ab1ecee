"""Tools to test your own code: laws that routes, codecs and schedules keep; ranks as threads or as processes."""

from fullgraph.testing.laws import adjoint_pair, assert_schedule_law, assert_size_law
from fullgraph.transport.ranks import anew, run_processes, run_threads

__all__ = ["adjoint_pair", "anew", "assert_schedule_law", "assert_size_law", "run_processes", "run_threads"]
