"""The commands beside `train`, a function each; `cli.py` puts them together."""
