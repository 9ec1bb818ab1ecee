"""Pages for a browser: one file each, without scripts, that asks nobody for anything."""

from fullgraph.report.html.many import write_comparison
from fullgraph.report.html.one import PAGE, write_report
from fullgraph.report.html.past import PastRun, read_run

__all__ = ["PAGE", "PastRun", "read_run", "write_comparison", "write_report"]
