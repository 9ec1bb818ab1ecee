"""Benchmarks by command: a matrix of runs, measured in groups with comparable figures; each run is a cell in a file.

matrix.py   what is measured: texts that name graphs, models, strategies, ranks and rates
campaign.py the campaign: partitions graphs, starts ranks, resumes
rank.py     one rank of a group: every strategy in turn, in the same processes
measure.py  the measurement of one turn of a strategy
peers.py    PyG in one process, on the same graph and model
cell.py     results, and the files that hold them; tables.py prints them
"""

from fullgraph.lab.bench.cell import Cell, read_cells
from fullgraph.lab.bench.matrix import Matrix, Settings

__all__ = ["Cell", "Matrix", "Settings", "read_cells"]
