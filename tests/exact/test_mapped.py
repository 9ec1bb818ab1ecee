"""Input rows after dropout are computed when they are read, and never kept: the same training in less memory."""

from functools import partial

import pytest
import torch
from torch import Tensor

from fullgraph import nn
from fullgraph.nn import RowMap, view
from fullgraph.nn.linear import add_linear, linear
from fullgraph.placement import Mixture, Pipeline
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank
from tests.support import CASES, assert_same, dense_trace, train_trace, trainer_of

SPECS = {
    "gcn": nn.GCN(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="layer"),
    "narrow gcn": nn.GCN(layers=2, hidden=4, dropout=0.5, input_dropout=True),
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True, norm="batch"),
    "narrow sage": nn.GraphSAGE(layers=2, hidden=4, dropout=0.5, input_dropout=True),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.5, input_dropout=True),
    "gcnii": nn.GCNII(layers=3, hidden=8, dropout=0.3, norm="layer"),
    "resgcn": nn.ResGCN(layers=3, hidden=8, dropout=0.3),
}


@pytest.fixture
def never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map rows of any size in blocks of at most 4 rows (12 features in float64)."""
    monkeypatch.setattr(view, "KEPT_BYTES", {"cpu": 0, "cuda": 0})
    monkeypatch.setattr(view, "BLOCK_BYTES", {"cpu": 400, "cuda": 400})


def saved_by(spec: nn.ModelSpec) -> list[tuple[int, ...]]:
    """Shapes of the tensors with the first layer's width that a forward pass keeps, except its input."""
    trainer = trainer_of(SingleRank(), CASES["undirected"], spec, TrainConfig(dtype="float64"))
    rows, kept = trainer.shard.train, []
    trainer.shard.clock.tick()
    known = rows.view.known
    given = {rows.x.data_ptr()} | ({known.aggregated.data_ptr()} if known else set())

    def keep(t: Tensor) -> Tensor:
        kept.append(t)  # kept alive, so that no address is reused
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        trainer.model.train()(rows.x, rows.view)
    return [tuple(t.shape) for t in kept if t.data_ptr() not in given and tuple(t.shape) == tuple(rows.x.shape)]


@pytest.mark.usefixtures("never_kept")
@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize("model", SPECS)
def test_ranks_equal_dense_algebra(model: str, precompute: bool) -> None:
    make, spec = CASES["directed"], SPECS[model]
    losses, grads = dense_trace(make(1)[0], spec, precompute=precompute)
    for ranks in (1, 3):
        assert_same(run_threads(ranks, train_trace, make, spec, 5, None, False, precompute), losses, grads)


@pytest.mark.gpu
@pytest.mark.usefixtures("never_kept")
@pytest.mark.parametrize("model", SPECS)
def test_gpu_equals_dense_algebra(model: str) -> None:
    make, spec = CASES["directed"], SPECS[model]
    assert_same(run_threads(1, train_trace, make, spec, 5, None, False, True, "cuda"), *dense_trace(make(1)[0], spec))


@pytest.mark.parametrize("placement", [partial(Mixture, blocks=2), partial(Pipeline, stages=2, chunks=4)])
def test_other_placements(never_kept: None, monkeypatch: pytest.MonkeyPatch, placement: type) -> None:
    run = (2, train_trace, CASES["directed"], SPECS["gcn"], 4, None, False, True, "cpu", 0.05, True, False, placement)
    block_by_block = run_threads(*run)
    monkeypatch.undo()
    for one, other in zip(block_by_block, run_threads(*run), strict=True):
        assert_same([one], other["losses"], other["grads"])


@pytest.mark.parametrize("model", [name for name in SPECS if name != "resgcn"])  # it drops nothing of its input
def test_no_copy_of_the_input_is_kept(request: pytest.FixtureRequest, model: str) -> None:
    assert saved_by(SPECS[model])
    request.getfixturevalue("never_kept")
    assert not saved_by(SPECS[model])


def product(x: object, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """A linear map added to another one, with their gradients."""
    leaves = [weight, bias]
    y = add_linear(linear(x, weight, bias), x, weight.flip(0))
    return [y, *torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))]


@pytest.mark.usefixtures("never_kept")
class TestProduct:
    @pytest.mark.parametrize("shape", [(23, 12), (4, 12), (1, 1), (0, 12), (5, 300)])
    def test_equals_that_of_a_copy(self, shape: tuple[int, int]) -> None:
        x, ids = torch.randn(shape, dtype=torch.float64), torch.randint(0, 2**40, shape[:1])
        weight = torch.randn(7, shape[1], dtype=torch.float64, requires_grad=True)
        bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
        row_map = RowMap(p=0.4, key=9)
        mapped = row_map(x, ids)
        assert isinstance(mapped, nn.Mapped)
        for ours, wanted in zip(
            product(mapped, weight, bias), product(row_map.dense(x, ids), weight, bias), strict=True
        ):
            torch.testing.assert_close(ours, wanted, atol=1e-12, rtol=1e-12)

    def test_half_types_are_summed_in_float32(self) -> None:
        x, ids = torch.ones(4000, 1, dtype=torch.bfloat16), torch.arange(4000)
        weight = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
        y = linear(
            RowMap(p=0.5, key=1)(x, ids), weight
        )  # 200 rows a block: a sum of 4,000 in bfloat16 would stop at 256
        (grad,) = torch.autograd.grad(y, weight, torch.ones_like(y))
        kept = float(RowMap(p=0.5, key=1).dense(x, ids).float().sum())
        assert abs(float(grad) - kept) <= kept / 256

    def test_without_dropout_rows_are_as_they_are(self) -> None:
        x = torch.randn(23, 12)
        assert RowMap()(x, torch.arange(23)) is x

    def test_rows_with_a_gradient_are_mapped_at_once(self) -> None:
        x = torch.randn(23, 12, requires_grad=True)
        assert isinstance(RowMap(p=0.5, key=1)(x, torch.arange(23)), Tensor)

    def test_other_functions_see_all_rows(self) -> None:
        x, ids = torch.randn(23, 12), torch.arange(23)
        mapped, wanted = RowMap(p=0.5, key=1)(x, ids), RowMap(p=0.5, key=1).dense(x, ids)
        assert torch.equal(torch.cat([mapped, x], 1), torch.cat([wanted, x], 1))
        assert torch.equal(2 * x - mapped, 2 * x - wanted)


def test_small_rows_are_kept_on_a_cpu() -> None:
    assert isinstance(RowMap(p=0.5, key=1)(torch.randn(23, 12), torch.arange(23)), Tensor)
