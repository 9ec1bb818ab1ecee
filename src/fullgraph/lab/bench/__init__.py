"""Benchmarks by command: a matrix of runs, measured in groups whose figures can be compared, each one a cell of a file.

matrix.py   what is measured: texts that name graphs, models, strategies, ranks and rates
campaign.py who measures it: cuts graphs, starts ranks, resumes
rank.py     one rank of a group: every strategy in turn, in the same processes
measure.py  what a turn of a strategy takes
peers.py    PyG in one process, on the same graph and model
cell.py     what was found; outcome.py and page.py write it
"""

from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.bench.matrix import Matrix, Settings
from fullgraph.lab.bench.outcome import read_cells

__all__ = ["Cell", "Matrix", "Settings", "read_cells"]
