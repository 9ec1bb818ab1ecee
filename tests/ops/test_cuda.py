"""On a GPU every operation and its gradients equal those of the CPU; the draws of dropout agree to the bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.ops import (
    Adjacency,
    Structure,
    act_dropout,
    add_rows,
    dropout_arcs,
    edge_scores,
    edge_softmax,
    gather_rows,
    spmm,
    spmm_heads,
)

pytestmark = pytest.mark.gpu
MakeStructure = Callable[..., Structure]


def results(adj: Adjacency, leaves: dict[str, Tensor], device: str) -> tuple[list[Tensor], list[Tensor]]:
    """What dropout gives; every other output and every gradient; computed on `device`."""
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
        gather_rows(t["base"], t["rows"]),
    ]
    floats = [leaf for leaf in t.values() if leaf.is_floating_point()]
    loss = torch.stack([y.square().sum() for y in dropped + outputs]).sum()
    return dropped, [out, *outputs, *torch.autograd.grad(loss, floats)]


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
