"""The display of a command's progress: its phase, a bar, and a table during training."""

from fullgraph.display.display import SILENT, Display, OnProgress, Shown, shown

__all__ = ["SILENT", "Display", "OnProgress", "Shown", "shown"]
