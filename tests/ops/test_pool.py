"""The pool of large blocks: what it hands out, what it keeps, and products whose results lie in it."""

import threading

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fullgraph.ops import pool, pooled_linear, pools
from fullgraph.ops.pool import SLACK, Pool

MB = 1 << 20


@pytest.fixture
def own(monkeypatch):
    own = Pool()
    monkeypatch.setattr(pool, "POOL", own)
    return own


def held(own):
    own._collect()
    return sum(block.size for block in own._free)


def test_a_tensor_gets_the_memory_of_one_that_died(own):
    x = pool.empty(torch.zeros(0), 1024, 1024)
    place = x.data_ptr()
    del x
    assert pool.empty(torch.zeros(0, dtype=torch.float64), 512, 1024).data_ptr() == place


def test_a_view_keeps_the_memory(own):
    row = pool.empty(torch.zeros(0), 1024, 1024).fill_(3)[5]
    other = pool.empty(torch.zeros(0), 1024, 1024).fill_(4)
    assert held(own) == 0
    assert torch.equal(row, torch.full((1024,), 3.0))
    assert torch.equal(other, torch.full((1024, 1024), 4.0))


def test_a_pool_holds_hardly_more_than_was_in_use(own):
    for size in (8, 3, 5, 2, 7, 4):
        kept = [pool.empty(torch.zeros(0), 1, size * MB // 4) for _ in range(2)]
        own._collect()
        assert own._used == 2 * size * MB
        assert own._used + held(own) <= SLACK * own._most <= SLACK * 16 * MB
        del kept
    own.clear()
    assert held(own) == own._used == 0


@pytest.mark.parametrize("like", [torch.zeros(0, dtype=torch.bfloat16), torch.zeros(0, device="meta")])
def test_other_tensors_are_torchs_own(own, like):
    x = pool.empty(like, 1024, 1024)
    assert (x.shape, x.dtype, x.device) == ((1024, 1024), like.dtype, like.device)
    assert own._used == 0


def test_small_tensors_are_torchs_own(own):
    assert pool.empty(torch.zeros(0), 10, 10).shape == (10, 10)
    assert own._used == 0


def test_threads_never_share_a_block(own):
    wrong = []

    def work(number):
        for _ in range(50):
            x = pool.empty(torch.zeros(0), 256, 1024).fill_(number)
            wrong.extend([number] if bool((x != number).any()) else [])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", ["plain", "bias", "base"])
def test_a_pooled_product_equals_its_equation(kind):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, base = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 3), (4, 3), (4,), (5, 4))
    )
    given = (bias if kind == "bias" else None, base if kind == "base" else None)
    y = pooled_linear(x, weight, given[0], None if given[1] is None else given[1] * 1)
    expected = x @ weight.T + (bias if kind == "bias" else base if kind == "base" else 0)
    assert torch.allclose(y, expected, rtol=0, atol=1e-12)
    leaves = (x, weight, *(t for t in given if t is not None))

    def product(x, weight, other=None):
        return pooled_linear(
            x, weight, other if kind == "bias" else None, None if other is None or kind == "bias" else other * 1
        )

    assert gradcheck(product, leaves)
    assert gradgradcheck(product, leaves)


def test_which_rows_are_pooled():
    rows = torch.zeros(1024, 256)
    assert pools(rows)
    assert not pools(rows[:10])
    assert not pools(rows.bfloat16())
    assert not pools(rows.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not pools(rows)
