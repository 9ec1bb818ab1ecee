"""The order of a pipeline's stages as data: which chunk a stage runs forward or back, slot by slot.

All chunks go forward, then back in the reverse order, as in GPipe.
"""

from collections.abc import Sequence
from typing import NamedTuple

AHEAD = 2  # chunks whose rows may arrive while another chunk runs


class Action(NamedTuple):
    """A stage runs a chunk forward ("F") or back ("B"). `coming`: the chunks whose rows it expects from now on."""

    kind: str
    chunk: int
    coming: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}{self.chunk}"


def stage_order(chunks: Sequence[int]) -> list[Action]:
    """The actions of every stage in a step with this order of chunks."""
    back = list(reversed(chunks))
    return [Action(kind, chunk, _coming(order, place))
            for kind, order in (("F", chunks), ("B", back)) for place, chunk in enumerate(order)]  # fmt: skip


def _coming(order: Sequence[int], place: int) -> tuple[int, ...]:
    return tuple(order[place + AHEAD : place + AHEAD + 1] if place else order[: AHEAD + 1])


def slots_of(stages: int, chunks: Sequence[int]) -> list[list[str]]:
    """By stage and slot, the stage's action if every action takes one slot; empty while the stage waits for another."""
    order, last = stage_order(chunks), 2 * len(chunks)
    table: list[list[str]] = [[] for _ in range(stages)]
    came: dict[tuple[int, str, int], int] = {}  # (stage, kind, chunk) -> the slot after which it is done
    for kind, way in (("F", range(stages)), ("B", range(stages - 1, -1, -1))):
        for stage in way:
            for action in (each for each in order if each.kind == kind):
                ready = came.get((stage - 1 if kind == "F" else stage + 1, kind, action.chunk), 0)
                table[stage] += [""] * (ready - len(table[stage])) + [str(action)]
                came[stage, kind, action.chunk] = len(table[stage])
    assert all(sum(map(bool, row)) == last for row in table)
    return table


def table(stages: int, chunks: int) -> str:
    """The order of a step as text, one line per stage."""
    rows = slots_of(stages, range(chunks))
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(f"stage {stage}: " + " ".join(cell.ljust(width) for cell in row).rstrip()
                     for stage, row in enumerate(rows))  # fmt: skip
