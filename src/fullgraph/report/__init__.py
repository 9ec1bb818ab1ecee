"""Records of a run: the meter, the epochs, traces and tables."""

from fullgraph.report.meter import Meter, Phases, Tally, age, peak_memory_bytes
from fullgraph.report.record import EpochRecord, MetricsLog, as_table, from_table, medians, read_metrics
from fullgraph.report.tables import PAGE, Outcome, read_outcome

__all__ = [
    "PAGE",
    "EpochRecord",
    "Meter",
    "MetricsLog",
    "Outcome",
    "Phases",
    "Tally",
    "age",
    "as_table",
    "from_table",
    "medians",
    "peak_memory_bytes",
    "read_metrics",
    "read_outcome",
]
