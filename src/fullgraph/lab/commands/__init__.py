"""Commands that need the lab, a function each; `cli.py` puts them beside those of the core."""
