"""A model's draws from Python's and NumPy's generators: equal on every rank, without effect outside a pass."""

import random
from contextlib import nullcontext

import numpy as np
import pytest

from fullgraph.own_model.drawing import drawing_alike

DRAWS = {
    "nothing": lambda: None,
    "python": random.random,
    "a gaussian of python": lambda: random.gauss(0, 1),
    "numpy": lambda: np.random.rand(3).tolist(),  # noqa: NPY002
    "a gaussian": np.random.randn,
    "two gaussians": lambda: np.random.randn(2).tolist(),  # noqa: NPY002
    "many": lambda: np.random.permutation(1000).tolist(),  # noqa: NPY002
    "a seed": lambda: np.random.seed(5),  # noqa: NPY002
    "a state": lambda: np.random.set_state(np.random.get_state()),  # noqa: NPY002
}


def drawn(outside, inside, around):
    """What each of 12 steps draws: before, inside and after."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    found = []
    for step in range(12):
        before = DRAWS[outside]() if step % 3 else None
        with around(step):
            within = DRAWS[inside]() if step % 4 > 1 else None
        found.append((before, within, np.random.randn() if step % 5 == 4 else None))  # noqa: NPY002
    return found, random.getstate(), repr(np.random.get_state())  # noqa: NPY002


@pytest.mark.parametrize("inside", DRAWS)
@pytest.mark.parametrize("outside", DRAWS)
def test_draws_inside_are_a_function_of_the_step_and_draws_outside_go_on(outside, inside):
    found, *after = drawn(outside, inside, lambda step: drawing_alike(7, step))
    alone, *wanted = drawn(outside, "nothing", lambda _: nullcontext())
    assert [(one[0], one[2]) for one in found] == [(one[0], one[2]) for one in alone]
    assert after == wanted
    elsewhere, *_ = drawn("two gaussians", inside, lambda step: drawing_alike(7, step))
    assert [one[1] for one in found] == [one[1] for one in elsewhere]


def test_another_generator_of_numpys_goes_on():
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        for wanted in np.random.PCG64(3).random_raw(3):
            with drawing_alike(1, 2):
                np.random.rand()  # noqa: NPY002
            assert np.random.get_bit_generator().random_raw() == wanted
    finally:
        np.random.set_bit_generator(kept)
