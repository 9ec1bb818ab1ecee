"""python -m faults.inputs TRIAL [CASE]: run the cases of a trial, or one of them."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from faults.inputs import CASES
from faults.inputs.batch import run_case
from faults.inputs.here import used_up


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults.inputs", description=__doc__)
    parser.add_argument("trial", type=int)
    parser.add_argument("case", type=int, nargs="?", help="default: all cases of the trial")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=CASES - 1)
    parser.add_argument("--report", action="store_true", help="print one line of JSON per case")
    parser.add_argument("--shared", type=Path, default=Path("runs/campaign/shared"))
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the case's folder")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    options.shared.mkdir(parents=True, exist_ok=True)
    shared, report = options.shared.resolve(), os.dup(1)
    scratch = options.scratch or Path(tempfile.mkdtemp(dir=shared))
    indices = range(options.first, options.last + 1) if options.case is None else [options.case]
    for index in indices:
        end, text = run_case(options.trial, index, shared, scratch)
        if options.report:
            os.write(report, json.dumps([index, end, text]).encode() + b"\n")
        elif end == "broken" or options.case is not None:
            print(f"{index}: {end}: {text}", flush=True)
        if options.report and used_up():
            break
    if options.keep:
        print(scratch)
    elif options.scratch is None:
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)  # threads of an interrupted case may still run


if __name__ == "__main__":
    main()
