"""A graph from tables that do not fit in memory: ids are hashed, arcs are sorted on a disk, features stay in the table.

scratch.py   the folder of finished steps, from which a killed command goes on
ids.py       the number of a node by its id
runs.py      pieces of the table of edges, each sorted by target
merge.py     all runs as one list of arcs, which is memory-mapped
rows.py      features, read from the table block by block
graph.py     these steps, in order
"""

from fullgraph.data.streamed.graph import Streamed, table_bytes
from fullgraph.data.streamed.scratch import Scratch, Unfinished, scratch_folder

__all__ = ["Scratch", "Streamed", "Unfinished", "scratch_folder", "table_bytes"]
