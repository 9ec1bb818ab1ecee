"""The first lines of a rank that a launcher started, run before anything large is imported:

    python -P boot.py LAUNCHER_PID MODULE ARGUMENT...

The rank dies with its launcher, however that dies. SIGTERM is held back until the rank can act on it, and SIGINT is the
launcher's alone: a terminal sends it to both.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher, module = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before that was arranged
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
