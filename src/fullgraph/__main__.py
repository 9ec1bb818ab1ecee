"""python -m fullgraph"""

from fullgraph.cli import main

if __name__ == "__main__":
    main()
