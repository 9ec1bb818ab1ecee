"""Whether this machine can train: what is present, what is missing, and how to get it."""

from fullgraph.lab.doctor.examine import CHECKS, examine

__all__ = ["CHECKS", "examine"]
