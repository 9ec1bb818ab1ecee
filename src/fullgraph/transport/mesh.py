"""Ranks on a grid with named axes."""

from collections.abc import Sequence
from math import prod

from fullgraph.errors import InputError


class Mesh:
    """Numbers the cells of a grid, the last axis fastest:  Mesh(stage=4, way=2)  puts rank 5 at stage 2, way 1."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    @classmethod
    def of(cls, ranks: int, *, ways: int, stages: int) -> "Mesh":
        """Arrange ranks by stage and way. 0 means: computed from the other."""
        given = {"ways": ways, "stages": stages}
        for name, size in given.items():
            if size < 0 or (size and ranks % size):
                good = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
                raise InputError(f"{name}={size} does not divide {ranks} ranks; choose {name} from {good}")
        if not ways and not stages:
            raise InputError("a mesh needs ways or stages; give one of them")
        mesh = cls(stage=stages or ranks // ways, way=ways or ranks // stages)
        if len(mesh) != ranks:
            raise InputError(f"ways={ways} x stages={stages} are not {ranks} ranks; give one of them")
        return mesh

    def at(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank, by axis."""
        place = {}
        for axis, size in reversed(self.sizes.items()):
            rank, place[axis] = divmod(rank, size)
        return place

    def rank(self, **place: int) -> int:
        number = 0
        for axis, size in self.sizes.items():
            number = number * size + place[axis]
        return number

    def along(self, axis: str, rank: int) -> Sequence[int]:
        """Return the ranks that share all coordinates with this rank except on `axis`, including the rank itself."""
        place = self.at(rank)
        return [self.rank(**{**place, axis: index}) for index in range(self.sizes[axis])]

    def __len__(self) -> int:
        return prod(self.sizes.values())
