"""Python's and NumPy's random generators inside a model: equal draws on every rank."""

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fullgraph.ops import dropout_key

NUMPYS_BYTES = 624 * 4 + 4  # size of a Mersenne Twister's state: its numbers, and the position among them


@contextmanager
def drawing_alike(seed: int, step: int) -> Iterator[None]:
    """While the block runs, `random` and `numpy.random` draw equally on every rank; afterwards their state is
    restored.
    """
    key = dropout_key(seed, step, 0)
    python, numpys = random.getstate(), _NUMPYS.state()
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002
    seeded = _NUMPYS.memory()
    try:
        yield
    finally:
        random.setstate(python)
        _NUMPYS.restore(numpys, untouched=seeded is not None and _NUMPYS.memory() == seeded)


class _NumPys:
    """NumPy's generator. `np.random.get_state` and `set_state` take 60 us; its memory is copied in one.

    The memory lacks the second number of a pair of Gaussians, which NumPy keeps elsewhere. So it stands for the whole
    state only where there is no such number: it is what was restored last, or nothing was drawn since it was seeded.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] | None = None  # the state restored last, if it holds no second Gaussian

    def memory(self) -> bytes | None:
        """The bytes of the state; None for a different generator, whose memory layout is unknown."""
        address = self._address()
        return None if address is None else ctypes.string_at(address, NUMPYS_BYTES)

    def state(self) -> Any:
        memory = self.memory()
        if memory is not None and self._last is not None and memory == self._last[0]:
            return self._last[1]
        return np.random.get_state(legacy=False)  # noqa: NPY002

    def restore(self, state: Any, *, untouched: bool) -> None:
        """untouched: nothing was drawn since `np.random.seed`."""
        if untouched and self._last is not None and state is self._last[1] and (address := self._address()):
            ctypes.memmove(address, self._last[0], NUMPYS_BYTES)
            return
        np.random.set_state(state)  # noqa: NPY002
        memory, told = self.memory(), state["state"]
        whole = not state["has_gauss"]
        if memory is not None and whole and memory == told["key"].tobytes() + told["pos"].to_bytes(4, sys.byteorder):
            self._last = memory, state
        else:
            self._last = None

    def _address(self) -> int | None:
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        return generator.ctypes.state_address if type(generator) is np.random.MT19937 else None


_NUMPYS = _NumPys()
