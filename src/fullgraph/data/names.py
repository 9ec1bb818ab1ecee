"""What the user calls each node: the ids of a table, kept beside the graph so that results carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fullgraph.data.arrays import Array, as_numpy, frozen
from fullgraph.errors import InputError, one_line


@dataclass(frozen=True, eq=False)
class Names:
    """One whole number or one text a node, in the graph's own order.

    Texts lie behind one another as UTF-8, so that millions of them are two arrays: bytes, and where each text begins.
    """

    ARRAYS: ClassVar = ("names", "names_text", "names_starts")  # that names are stored as: the first, or the others

    values: Array  # int64 [N], or uint8 [bytes]
    starts: Array | None = None  # int64 [N+1], of texts

    @classmethod
    def of(cls, value: Any) -> Names:
        """From whole numbers or texts, one a node; a name that occurs twice is refused."""
        names = as_numpy(value)
        texts = names.dtype.kind in "US" or (
            names.dtype == object and all(isinstance(name, str) for name in names.ravel())
        )
        if names.ndim != 1 or not (texts or names.dtype.kind in "iu"):
            raise InputError(f"names is {names.dtype} {names.shape}: give one whole number or one text a node")
        sorted_names = np.sort(names)
        twice = np.flatnonzero(sorted_names[1:] == sorted_names[:-1])
        if twice.size:
            name = one_line(repr(sorted_names[twice[0]].item()), 60)
            raise InputError(f"the name {name} occurs twice: give each node its own")
        if not texts:
            return cls(frozen(names.astype(np.int64, copy=False)))
        coded = [_coded(name) for name in names.tolist()]
        starts = np.zeros(len(coded) + 1, dtype=np.int64)
        np.cumsum([len(name) for name in coded], out=starts[1:])
        return cls(frozen(np.frombuffer(b"".join(coded), dtype=np.uint8)), frozen(starts))

    def __len__(self) -> int:
        return len(self.values) if self.starts is None else len(self.starts) - 1

    def block(self, low: int, high: int) -> list[int] | list[str]:
        """The names of nodes low to high - 1."""
        if self.starts is None:
            numbers: list[int] = self.values[low:high].tolist()
            return numbers
        ends = self.starts[low : high + 1].tolist()
        text = self.values[ends[0] : ends[-1]].tobytes()
        # Shards of an older version may hold other bytes, which are spelled out: their runs can still be finished.
        return [text[a - ends[0] : b - ends[0]].decode(errors="backslashreplace") for a, b in pairwise(ends)]

    def numpy(self) -> Array:
        """All of them as int64 [N], or as texts [N]."""
        return np.asarray(self.block(0, len(self)), dtype=None if self.starts is not None else np.int64)

    def picked(self, keep: Array) -> Names:
        """Those of the nodes marked True."""
        if self.starts is None:
            return Names(frozen(self.values[keep]))
        length = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(length[keep])])
        return Names(frozen(self.values[np.repeat(keep, length)]), frozen(starts))

    def arrays(self) -> dict[str, Array]:
        """What `from_arrays` makes names of again."""
        numbers, text, starts = self.ARRAYS
        return {numbers: self.values} if self.starts is None else {text: self.values, starts: self.starts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Names:
        numbers, text, starts = cls.ARRAYS
        return cls(arrays[numbers]) if numbers in arrays else cls(arrays[text], arrays[starts])


def _coded(name: str | bytes) -> bytes:
    """A text as UTF-8; bytes of another encoding are refused."""
    try:
        return name.encode() if isinstance(name, str) else name.decode().encode()
    except UnicodeError:
        fix = "give names as text, such as np.char.decode(names, 'latin-1')"
        raise InputError(f"the name {one_line(repr(name), 60)} is not UTF-8: {fix}") from None
