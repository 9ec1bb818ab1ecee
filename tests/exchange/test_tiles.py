"""Tiles: rows become columns and come back, the backward pass is the transpose, and nothing else crosses."""

import pytest
import torch

from fullgraph.exchange import Clock, Wire
from fullgraph.plan import SpreadRoute, TileRoute
from fullgraph.testing import adjoint_pair, run_processes, run_threads

# rows of each rank, and the width: uneven rows, ranks without rows, fewer columns than ranks, even shares
LAYOUTS = [((5,), 3), ((4, 3), 5), ((3, 0, 4), 7), ((2, 3, 1, 2), 3), ((0, 0, 6, 1), 1), ((4, 4, 4, 4), 8)]


def adjoint(transport, rows, width):
    route = TileRoute.of(transport.rank, rows, width)
    return adjoint_pair(transport, route, rows[transport.rank], width)


def adjoint_back(transport, rows, width):
    route = TileRoute.of(transport.rank, rows, width)
    return adjoint_pair(transport, route.T, sum(rows), route.columns[transport.rank])


def adjoint_spread(transport, rows, width):
    return adjoint_pair(
        transport, SpreadRoute(transport.rank, rows, tuple(range(len(rows))[:2])), rows[transport.rank], width
    )


@pytest.mark.parametrize(("rows", "width"), LAYOUTS)
@pytest.mark.parametrize("body", [adjoint, adjoint_back, adjoint_spread])
def test_backward_is_the_transpose(body, rows, width):
    for left, right in run_threads(len(rows), body, rows, width):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_backward_is_the_transpose_in_processes():
    for left, right in run_processes(3, adjoint, (3, 0, 4), 7):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def crossed(transport, rows, width):
    """A table by rows, by columns, and by rows again."""
    route = TileRoute.of(transport.rank, rows, width)
    table_ND = torch.arange(sum(rows) * width, dtype=torch.float64).view(-1, width)
    x = table_ND.split(list(rows))[transport.rank]
    seen = [x]
    for side, way in (("columns", route), ("rows", route.T)):
        channel = Wire().build(name=f"layer0/{side}", route=way, transport=transport, clock=Clock())
        x, token = channel.begin(x)
        y = channel.end(token)
        way.T.own(y).copy_(way.own(x))
        x = y
        seen.append(x)
    return table_ND, *seen, route.columns


@pytest.mark.parametrize(("rows", "width"), LAYOUTS)
def test_rows_become_columns_and_come_back(rows, width):
    for rank, (table_ND, x, y, back, columns) in enumerate(run_threads(len(rows), crossed, rows, width)):
        assert torch.equal(y, table_ND.split(list(columns), 1)[rank])
        assert torch.equal(back, x)


@pytest.mark.parametrize(("rows", "width"), LAYOUTS)
def test_tiles_are_as_many_numbers_as_the_formula_says(rows, width):
    """N D - sum_r n_r k_r in either direction; and the numbers that one rank packs for another are those it expects."""
    routes = [TileRoute.of(rank, rows, width) for rank in range(len(rows))]
    columns = routes[0].columns
    stay = sum(n * k for n, k in zip(rows, columns, strict=True))
    assert sum(columns) == width
    assert max(columns) - min(columns) <= 1
    for way in (routes, [route.T for route in routes]):
        sizes = [(rows[r], width) if way is routes else (sum(rows), columns[r]) for r in range(len(rows))]
        packed = [route.pack(torch.zeros(size)) for route, size in zip(way, sizes, strict=True)]
        assert sum(tile.numel() for tiles in packed for tile in tiles.values()) == sum(rows) * width - stay
        for peer, route in enumerate(way):
            sent = {rank: tuple(tiles[peer].shape) for rank, tiles in enumerate(packed) if peer in tiles}
            assert sent == route.shapes((sizes[peer][1],))
