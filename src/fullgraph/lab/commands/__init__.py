"""Commands that need the lab, one function each; `cli.py` adds them to the core's commands."""
