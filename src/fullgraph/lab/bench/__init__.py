"""Benchmarks by command: a matrix of runs, measured in groups whose figures can be compared, each one a cell of a file.

matrix.py   what is measured: texts that name graphs, models, strategies, ranks and rates
campaign.py who measures it: cuts graphs, starts ranks, resumes
rank.py     one rank of a group: every strategy in turn, in the same processes
measure.py  what a turn of a strategy takes
peers.py    PyG in one process, on the same graph and model
cell.py     what was found, and the files of it; tables.py shows it
"""

from fullgraph.lab.bench.cell import Cell, read_cells
from fullgraph.lab.bench.matrix import Matrix, Settings

__all__ = ["Cell", "Matrix", "Settings", "read_cells"]
