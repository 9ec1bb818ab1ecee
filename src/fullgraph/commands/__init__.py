"""The commands except `train`, one function each; `cli.py` assembles them."""
