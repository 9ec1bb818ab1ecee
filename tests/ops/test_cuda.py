"""On a GPU every operation and its gradients equal those of the CPU; draws, bytes and reruns are bit-identical."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullgraph.ops import (
    Adjacency,
    Drop,
    Structure,
    act_dropout,
    add_rows,
    attend,
    dropout_arcs,
    edge_scores,
    edge_softmax,
    gather_rows,
    layer_norm,
    rows_linear,
    spmm,
    spmm_heads,
)
from fullgraph.ops.kernels import backend, fused_backend
from fullgraph.ops.lowbit import row_bytes
from fullgraph.ops.reference import csr_product

pytestmark = pytest.mark.gpu
MakeStructure = Callable[..., Structure]
TYPES = [torch.float32, torch.float64, torch.bfloat16]
PRECISION = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2**-7}


@pytest.fixture(params=["triton", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels, and the GPU's fallback without Triton."""
    monkeypatch.setenv("FULLGRAPH_KERNELS", "" if request.param == "triton" else "torch")
    found = fused_backend(torch.empty(0, device="cuda")) is not None
    assert found == (request.param == "triton"), "install Triton to test its kernels"
    return str(request.param)


@pytest.fixture
def hubs() -> Structure:
    """A power law on the device: many empty rows, rows of one arc, and a few of tens of thousands."""
    generator = torch.Generator("cuda").manual_seed(0)
    degree = (torch.rand(30_000, device="cuda", generator=generator) ** -0.7 * 8 - 8).long().clamp_(max=70_000)
    degree[7] = 70_000
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    sources = torch.rand(int(indptr[-1]), device="cuda", generator=generator) ** 3 * 20_000
    return Structure(indptr, sources.int(), 20_000)


def results(adj: Adjacency, leaves: dict[str, Tensor], device: str) -> tuple[list[Tensor], list[Tensor]]:
    """The result of dropout; every other output and every gradient; computed on `device`."""
    t = {name: leaf.to(device, copy=True).requires_grad_(leaf.is_floating_point()) for name, leaf in leaves.items()}
    adj = adj.to(device=device)
    s, out = adj.structure, t["base"].detach().clone()
    add_rows(out, t["rows"], t["x"].detach()[: len(t["rows"])])
    dropped = [
        act_dropout(t["base"], t["ids"], key=5, p=0.4, act="relu"),
        act_dropout(t["base"], t["ids"], key=5, p=0.4, act="none"),
        dropout_arcs(s, t["ids"], t["scores"][:, 0], key=5, p=0.4),
    ]
    outputs = [
        spmm(adj, t["x"]),
        spmm(adj, t["x"], t["base"] * 1),
        spmm_heads(s, edge_softmax(s, t["scores"] + edge_scores(s, t["row"], t["col"])), t["x"].view(-1, 2, 8)),
        attend(s, t["row"], t["col"], t["x"].view(-1, 2, 8)),
        gather_rows(t["base"], t["rows"]),
    ]
    floats = [leaf for leaf in t.values() if leaf.is_floating_point()]
    loss = torch.stack([y.square().sum() for y in dropped + outputs]).sum()
    return dropped, [out, *outputs, *torch.autograd.grad(loss, floats)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("ascending", [True, False])
def test_cuda_equals_cpu(make_structure: MakeStructure, ascending: bool) -> None:
    s = make_structure(200, 150, 2000, ascending=ascending)

    def real(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    leaves = {"x": real(150, 16), "base": real(200, 16), "scores": real(2000, 2), "row": real(200, 2)}
    leaves |= {"col": real(150, 2), "ids": torch.randperm(200), "rows": torch.randperm(200)[:90]}
    adj = Adjacency(s, real(2000), real(200), real(150))
    (dropped, rest), (dropped_there, rest_there) = results(adj, leaves, "cpu"), results(adj, leaves, "cuda")
    for here, there in zip(dropped, dropped_there, strict=True):
        assert torch.equal(here, there.cpu())
    for here, there in zip(rest, rest_there, strict=True):
        torch.testing.assert_close(here, there.cpu(), atol=1e-10, rtol=1e-10)


def test_the_transpose_is_the_same(make_structure: MakeStructure) -> None:
    s = make_structure(200, 150, 2000, ascending=False)
    there = s.to("cuda")
    assert torch.equal(s.perm, there.perm.cpu())
    assert torch.equal(s.T.indptr, there.T.indptr.cpu())
    assert torch.equal(s.T.indices, there.T.indices.cpu())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("parts", ["", "wrc"])
def test_products_at_real_sizes(hubs: Structure, kernels: str, dtype: torch.dtype, parts: str) -> None:
    finer = torch.promote_types(dtype, torch.float32)
    sizes = {"w": hubs.num_arcs, "r": hubs.num_rows, "c": hubs.num_cols}
    weight, row, col = (torch.rand(n, device="cuda").to(finer) if k in parts else None for k, n in sizes.items())
    adj = Adjacency(hubs, weight, row, col)
    for width in (1, 3, 41, 64, 100, 128, 256, 602, 1025):
        x = torch.rand(hubs.num_cols, width, device="cuda").to(dtype)
        base = torch.rand(hubs.num_rows, width, device="cuda").to(dtype)
        scaled = x.double() if col is None else x.double() * col.double()[:, None]
        wanted = csr_product(hubs, None if weight is None else weight.double(), scaled)
        wanted = wanted if row is None else wanted * row.double()[:, None]
        precision = PRECISION[dtype]
        torch.testing.assert_close(spmm(adj, x).double(), wanted, atol=precision, rtol=precision)
        torch.testing.assert_close(
            spmm(adj, x, base.clone()).double(), wanted + base.double(), atol=precision, rtol=precision
        )


@pytest.mark.parametrize("dtype", TYPES)
def test_attention_at_real_sizes(hubs: Structure, dtype: torch.dtype) -> None:
    """Compared with the same formula in float64, in steps that store a number per arc."""
    shapes = ((hubs.num_rows, 4), (hubs.num_cols, 4), (hubs.num_cols, 4, 32))
    leaves = [torch.randn(*shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = attend(hubs, *leaves)
    scores = torch.nn.functional.leaky_relu(edge_scores(hubs, exact[0], exact[1]), 0.2)
    wanted = spmm_heads(hubs, edge_softmax(hubs, scores), exact[2])
    grad = torch.randn_like(y)
    ours = [y, *torch.autograd.grad(y, leaves, grad)]
    theirs = [wanted, *torch.autograd.grad(wanted, exact, grad.double())]
    for a, b in zip(ours, theirs, strict=True):
        error = (a.double() - b).norm() / b.norm()
        assert error < {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]


@pytest.mark.parametrize("dtype", TYPES)
def test_reruns_give_the_same_bits(hubs: Structure, dtype: torch.dtype) -> None:
    x = torch.randn(hubs.num_cols, 4, 32, device="cuda").to(dtype).requires_grad_()
    row, col = (torch.randn(n, 4, device="cuda").to(dtype).requires_grad_() for n in hubs.shape)

    def all_of_it() -> list[Tensor]:
        product, attended = spmm(Adjacency(hubs), x.flatten(1)), attend(hubs, row, col, x)
        loss = product.float().square().mean() + attended.float().square().mean()
        return [product, attended, *torch.autograd.grad(loss, (x, row, col))]

    first = all_of_it()
    for _ in range(3):
        for a, b in zip(first, all_of_it(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1000, 41), (3000, 256), (70, 5000)])
def test_draws_are_those_of_the_cpu(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, ids = torch.randn(shape).to(dtype), torch.randint(-(2**62), 2**62, shape[:1])
    grad = torch.randn(shape).to(dtype)
    for act in ("none", "relu"):
        here, there = (t.requires_grad_() for t in (x.clone(), x.cuda()))
        y, y_there = (
            act_dropout(t, ids.to(t.device), key=2**62 + 5, p=0.3, act=act)  # type: ignore[arg-type]
            for t in (here, there)
        )
        assert torch.equal(y, y_there.cpu())
        assert torch.equal(
            torch.autograd.grad(y, here, grad)[0], torch.autograd.grad(y_there, there, grad.cuda())[0].cpu()
        )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 48, 100, 128, 256, 602, 1024, 3000, 5000])
def test_layer_norm_at_real_sizes(dtype: torch.dtype, width: int) -> None:
    """Against torch in float64; weights in float32 and in the rows' own type; the same bits every time."""
    x, grad = (torch.randn(20_011, width, device="cuda").to(dtype) for _ in range(2))
    for kind in {dtype, torch.promote_types(dtype, torch.float32)}:
        leaves = [t.requires_grad_() for t in (x.clone(), *(torch.randn(2, width, device="cuda").to(kind)))]
        fine = [leaf.detach().double().requires_grad_() for leaf in leaves]

        def both(leaves: list[Tensor] = leaves) -> list[Tensor]:
            y = layer_norm(leaves[0], leaves[1], leaves[2], 1e-5)
            return [y, *torch.autograd.grad(y, leaves, grad)]

        wanted = torch.nn.functional.layer_norm(fine[0], (width,), fine[1], fine[2])
        for a, again, b in zip(
            both(), both(), [wanted, *torch.autograd.grad(wanted, fine, grad.double())], strict=True
        ):
            assert torch.equal(a, again)
            # A row of one number has no variance: its gradient should be zero, and is rounding divided by sqrt(eps).
            nothing = 0.1 if width == 1 else 1e-5
            assert (a.double() - b).norm() <= {torch.bfloat16: 1e-2}.get(dtype, 1e-5) * b.norm() + nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(50_007, 602, 256), (200_001, 100, 128), (100_000, 128, 47), (333, 1, 1)])
def test_dense_products_at_real_sizes(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """As precise as float32 arithmetic, with dropped rows too; the same bits every time."""
    rows, width, out = shape
    x, weight = (torch.randn(n, width, device="cuda").to(dtype) for n in (rows, out))
    grad, ids = torch.randn(rows, out, device="cuda").to(dtype), torch.arange(rows, device="cuda")
    for drop in (None, Drop(ids, 5, 0.5)):
        if drop is None and dtype != torch.float32:
            continue
        leaves = [x.clone().requires_grad_(drop is None), weight.clone().requires_grad_()]
        used = [leaf for leaf in leaves if leaf.requires_grad]
        read = x if drop is None else act_dropout(x, ids, key=5, p=0.5, act="none")
        y = rows_linear(*leaves, None, None, drop)
        assert torch.equal(y, rows_linear(*leaves, None, None, drop))
        found, again = (torch.autograd.grad(y, used, grad, retain_graph=True) for _ in range(2))
        wanted = [grad.double() @ weight.double()] if drop is None else []
        wanted = [read.double() @ weight.double().t(), *wanted, grad.double().t() @ read.double()]
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        for a, b in zip([y, *found], wanted, strict=True):
            assert (a.double() - b).norm() <= (1e-6 if dtype == torch.float32 else 1e-2) * b.norm()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 7, 8, 41, 100, 256, 602, 3000])
def test_bytes_are_those_of_the_cpu(bits: int, width: int) -> None:
    x, inf, nan = torch.randn(3000, width), float("inf"), float("nan")
    x[1], x[2], x[3], x[4] = 0.0, -0.0, 1.1, inf
    x[5, 0], x[6, 0], x[7, -1] = inf, nan, -inf
    x[8:20] *= 1e-44  # subnormal
    x[20:30] *= 2e38  # a range beyond float32
    x[30:60] *= 1e-30
    x[60:90] += 1e6
    x[90:150] = x[90:150] * 0.02 + 10.0 ** torch.arange(60)[:, None].div(10, rounding_mode="floor")
    x[150:180] = -100.3 - x[150:180].abs() * 0.02
    wire = torch.zeros(3000, row_bytes(width, bits), dtype=torch.uint8)
    wire_there = wire.cuda()
    backend(x).lowbit_encode(x, 9, bits, wire)
    backend(x.cuda()).lowbit_encode(x.cuda(), 9, bits, wire_there)
    assert torch.equal(wire, wire_there.cpu())
    for dtype in (torch.float32, torch.bfloat16):
        here, there = torch.empty(3000, width, dtype=dtype), torch.empty(3000, width, dtype=dtype, device="cuda")
        backend(here).lowbit_decode(wire, bits, here)
        backend(there).lowbit_decode(wire_there, bits, there)
        torch.testing.assert_close(here, there.cpu(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_added_as_on_the_cpu(dtype: torch.dtype) -> None:
    for width in (1, 41, 256, 602):
        out, rows, values = torch.randn(5000, width).to(dtype), torch.randperm(5000)[:4000], torch.randn(4000, width)
        there = out.cuda()
        add_rows(there, rows.cuda().int(), values.cuda().to(dtype))
        add_rows(out, rows, values.to(dtype))
        assert torch.equal(out, there.cpu())


def test_an_undirected_graph_is_one_structure() -> None:
    one, other = torch.randint(0, 3000, (2, 200_000), device="cuda")
    target, source = torch.cat([one, other]), torch.cat([other, one])
    order = (target * 3000 + source).argsort()
    indptr = torch.nn.functional.pad(torch.bincount(target, minlength=3000).cumsum(0), (1, 0))
    s = Structure(indptr, source[order].int(), 3000)
    assert s.T is s
    weight = torch.randn(400_000, device="cuda", dtype=torch.float64)
    x, y = torch.randn(2, 3000, 8, device="cuda", dtype=torch.float64)
    adj = Adjacency(s, weight)
    torch.testing.assert_close((spmm(adj, x) * y).sum(), (x * spmm(adj.T, y)).sum())


def test_more_arcs_than_int32_counts() -> None:
    degree, num_cols = 1 << 16, 1009
    rows = (1 << 15) + 3
    indices = torch.arange(num_cols, dtype=torch.int32, device="cuda").repeat(rows * degree // num_cols + 1)
    s = Structure(torch.arange(rows + 1, device="cuda") * degree, indices[: rows * degree], num_cols)
    assert s.num_arcs > 2**31
    x = torch.randn(num_cols, 4, device="cuda")
    y = spmm(Adjacency(s), x)
    for row in (0, 1, rows // 2, rows - 2, rows - 1):
        counts = torch.bincount(s.indices[row * degree : (row + 1) * degree], minlength=num_cols)
        torch.testing.assert_close(y[row].double(), counts.double() @ x.double(), atol=1e-2, rtol=1e-4)


def test_a_tuned_plan_is_kept(hubs: Structure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton_plan = pytest.importorskip("fullgraph.ops.triton_plan")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FULLGRAPH_TUNE", "1")
    triton_plan._known.cache_clear()
    x = torch.randn(hubs.num_cols, 64, device="cuda")
    y = spmm(Adjacency(hubs), x)
    (plan,) = triton_plan._known().values()
    triton_plan._known.cache_clear()  # as a new process does
    assert list(triton_plan._known().values()) == [plan]
    assert torch.equal(spmm(Adjacency(hubs), x), y)
    triton_plan._known.cache_clear()
