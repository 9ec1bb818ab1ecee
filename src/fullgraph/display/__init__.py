"""The display of a command's progress: its phase, a bar, and a table during training."""

from fullgraph.display.display import SILENT, Display, OnProgress, Shown, shown
from fullgraph.display.words import count, duration, milliseconds, score, size

__all__ = ["SILENT", "Display", "OnProgress", "Shown", "count", "duration", "milliseconds", "score", "shown", "size"]
