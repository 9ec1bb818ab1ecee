"""Input rows in host memory: the same training, and the device never holds all of them."""

from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.errors import InputError
from fullgraph.nn import RowMap, view
from fullgraph.nn.linear import linear
from fullgraph.ops import host_rows
from fullgraph.placement import Mixture, Partitioned
from fullgraph.placement import view as rank_view
from fullgraph.preparing import check_placement
from fullgraph.run import Run
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.support import CASES, assert_same, dense_trace, train_trace

SPECS = {
    "gcn": nn.GCN(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="layer"),
    "narrow gcn": nn.GCN(layers=2, hidden=4, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="batch"),
    "sage, nothing dropped": nn.GraphSAGE(layers=3, hidden=16, dropout=0.0),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.5, input_dropout=True),
    "gcnii": nn.GCNII(layers=3, hidden=8, dropout=0.3, norm="layer"),
    "resgcn": nn.ResGCN(layers=3, hidden=8, dropout=0.3),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "BLOCK_BYTES", {"cpu": 400, "cuda": 400})  # 4 rows of 12 features in float64
    monkeypatch.setattr(rank_view, "COLUMNS", 5)
    monkeypatch.setattr(rank_view, "ROWS", 7)


@pytest.fixture
def as_if_elsewhere(monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    """A CPU that treats all rows without a gradient as rows of another memory."""
    monkeypatch.setattr(host_rows, "elsewhere", lambda x, device: not x.requires_grad)


@pytest.mark.usefixtures("as_if_elsewhere")
class TestOnACpu:
    @pytest.mark.parametrize("model", SPECS)
    def test_ranks_equal_dense_algebra(self, model: str) -> None:
        make, spec = CASES["directed"], SPECS[model]
        precompute = not spec.encodes
        losses, grads = dense_trace(make(1)[0], spec, precompute=precompute)
        for ranks in (1, 3):
            assert_same(run_threads(ranks, train_trace, make, spec, 5, None, False, precompute), losses, grads)

    def test_a_mixture(self) -> None:
        make, spec = CASES["directed"], SPECS["sage"]
        run = (make, spec, 5, None, False, True, "cpu", 0.05, True, False, partial(Mixture, blocks=2))
        assert_same(run_threads(2, train_trace, *run), *dense_trace(make(1)[0], spec))

    @pytest.mark.parametrize("rows", [0, 1, 7, 8, 30])
    def test_blocks_take_turns_in_two_places(self, rows: int) -> None:
        x, places, seen = torch.randn(rows, 3), set(), []
        for chosen, block in host_rows.blocks_on(x, x.device, 8):
            assert torch.equal(block, x[chosen])
            places.add(block.data_ptr())
            seen.append(chosen)
        assert [i for chosen in seen for i in range(rows)[chosen]] == list(range(rows))
        assert len(places) == min(2, len(seen))
        assert x.data_ptr() not in places or not rows


def test_rows_of_the_device_are_not_copied() -> None:
    x = torch.randn(30, 3)
    assert [block.data_ptr() for _, block in host_rows.blocks_on(x, x.device, 10)] == [
        x[first].data_ptr() for first in (0, 10, 20)
    ]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match="no-precompute"):
        TrainConfig(features_on="host", precompute=False)
    train = TrainConfig(features_on="host")
    config = Run(parts=2, model=SPECS["gcn"], strategy="gnnpipe", train=train)
    with pytest.raises(InputError, match="features-on"):
        check_placement(config)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("model", SPECS)
    def test_equals_dense_algebra(self, model: str) -> None:
        make, spec = CASES["directed"], SPECS[model]
        precompute, placement = not spec.encodes, partial(Partitioned, host_rows=True)
        run = (make, spec, 5, None, False, precompute, "cuda", 0.05, True, False, placement)
        assert_same(run_threads(1, train_trace, *run), *dense_trace(make(1)[0], spec, precompute=precompute))

    @pytest.mark.parametrize("p", [0.0, 0.5])
    def test_streams_are_in_order_and_memory_is_small(self, monkeypatch: pytest.MonkeyPatch, p: float) -> None:
        """Products that take longer than their copies, and copies that take longer than their products."""
        monkeypatch.setattr(view, "BLOCK_BYTES", {"cpu": 4 << 20, "cuda": 4 << 20})
        monkeypatch.setattr(view, "KEPT_BYTES", {"cpu": 0, "cuda": 0})
        x, ids = torch.randn(300_000, 256, pin_memory=True), torch.arange(300_000, device="cuda")
        for width in (8, 512):
            weight = torch.randn(width, 256, device="cuda", requires_grad=True)
            grad = torch.randn(300_000, width, device="cuda")

            def both(
                rows: torch.Tensor, weight: torch.Tensor = weight, grad: torch.Tensor = grad
            ) -> list[torch.Tensor]:
                y = linear(RowMap(p=p, key=3)(rows, ids), weight)
                return [y.detach(), *torch.autograd.grad(y, weight, grad)]

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            ours = both(x)
            assert torch.cuda.max_memory_allocated() - before < 300_000 * width * 4 + (128 << 20)  # x has 293 MiB
            wanted = both(x.cuda())
            again = both(x)
            for mine, other, direct in zip(ours, again, wanted, strict=True):
                assert torch.equal(mine, other)
                assert (mine - direct).norm() <= 1e-5 * direct.norm()  # sums of 300,000 numbers in another order
