"""What happened: the meter, and the record of a run."""

from fullgraph.report.meter import Meter, Tally, peak_memory_bytes
from fullgraph.report.record import EpochRecord, MetricsLog, medians, read_metrics, seconds_to, write_json, write_text

__all__ = [
    "EpochRecord",
    "Meter",
    "MetricsLog",
    "Tally",
    "medians",
    "peak_memory_bytes",
    "read_metrics",
    "seconds_to",
    "write_json",
    "write_text",
]
