"""Pages for a browser: one file each, which needs no network."""

from fullgraph.lab.html.many import write_comparison
from fullgraph.lab.html.one import write_report
from fullgraph.lab.html.past import read_run
from fullgraph.report.tables import PAGE

__all__ = ["PAGE", "read_run", "write_comparison", "write_report"]
