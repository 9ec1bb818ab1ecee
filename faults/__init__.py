"""Trials of what fullgraph promises when things go wrong: `make campaign`, or  python -m faults NAME --trials N."""
