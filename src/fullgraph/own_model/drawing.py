"""Python's and NumPy's random generators inside a model: equal draws on every rank."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fullgraph.ops import dropout_key


@contextmanager
def drawing_alike(seed: int, step: int) -> Iterator[None]:
    """While the block runs, `random` and `numpy.random` draw equally on every rank; afterwards their state is
    restored.
    """
    key = dropout_key(seed, step, 0)
    python, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)  # noqa: NPY002
