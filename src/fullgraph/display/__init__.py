"""What a person sees while a command works: the phase it is in, how far it is, and a table while it trains."""

from fullgraph.display.display import SILENT, Display, Shown, Told, shown

__all__ = ["SILENT", "Display", "Shown", "Told", "shown"]
