"""Whether this machine can train: what is present, what is missing, and how to get it."""

from fullgraph.lab.doctor.examine import CHECKS, examine
from fullgraph.lab.doctor.finding import Finding

__all__ = ["CHECKS", "Finding", "examine"]
