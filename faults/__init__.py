"""Trials of fullgraph's promises about failures: `make campaign`, or  python -m faults NAME --trials N."""
