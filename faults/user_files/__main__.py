"""python -m faults.user_files NUMBER: run one trial and print its result."""

import sys
import tempfile
from pathlib import Path

from faults import user_files

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        for number in map(int, sys.argv[1:]):
            try:
                print(number, user_files.trial(number, Path(shared)))
            except AssertionError as error:
                print(number, "BROKEN", error)
