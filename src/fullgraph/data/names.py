"""The user's names of nodes: the ids of a table, kept with the graph so that results carry them."""

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
    """One integer or text per node, in the graph's own order.

    Texts are concatenated as UTF-8, so that millions of texts need only two arrays: bytes, and the start of each text.
    """

    ARRAYS: ClassVar = ("names", "names_text", "names_starts")  # names in files: the first, or the two others for texts

    values: Array  # int64 [N], or uint8 [bytes]
    starts: Array | None = None  # int64 [N+1], of texts

    @classmethod
    def of(cls, value: Any) -> Names:
        """Build names from integers or texts, one per node; refuse a name that occurs twice."""
        names = as_numpy(value)
        texts = names.dtype.kind in "US" or (
            names.dtype == object and all(isinstance(name, str) for name in names.ravel())
        )
        if names.ndim != 1 or not (texts or names.dtype.kind in "iu"):
            raise InputError(f"names is {names.dtype} {names.shape}: give one integer or one text per node")
        sorted_names = np.sort(names)
        twice = np.flatnonzero(sorted_names[1:] == sorted_names[:-1])
        if twice.size:
            name = one_line(repr(sorted_names[twice[0]].item()), 60)
            raise InputError(f"the name {name} occurs twice: give each node a different name")
        if not texts:
            return cls(frozen(names.astype(np.int64, copy=False)))
        coded = [_coded(name) for name in names.tolist()]
        starts = np.zeros(len(coded) + 1, dtype=np.int64)
        np.cumsum([len(name) for name in coded], out=starts[1:])
        return cls(frozen(np.frombuffer(b"".join(coded), dtype=np.uint8)), frozen(starts))

    def __len__(self) -> int:
        return len(self.values) if self.starts is None else len(self.starts) - 1

    def block(self, low: int, high: int) -> list[int] | list[str]:
        """Return the names of nodes low to high - 1."""
        if self.starts is None:
            numbers: list[int] = self.values[low:high].tolist()
            return numbers
        ends = self.starts[low : high + 1].tolist()
        text = self.values[ends[0] : ends[-1]].tobytes()
        # Shards of an older version may hold other bytes; they are escaped so that such runs can be finished.
        return [text[a - ends[0] : b - ends[0]].decode(errors="backslashreplace") for a, b in pairwise(ends)]

    def numpy(self) -> Array:
        """Return all names as int64 [N], or as texts [N]."""
        return np.asarray(self.block(0, len(self)), dtype=None if self.starts is not None else np.int64)

    def picked(self, keep: Array) -> Names:
        """Return the names of the nodes marked True."""
        if self.starts is None:
            return Names(frozen(self.values[keep]))
        length = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(length[keep])])
        return Names(frozen(self.values[np.repeat(keep, length)]), frozen(starts))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays from which `from_arrays` restores the names."""
        numbers, text, starts = self.ARRAYS
        return {numbers: self.values} if self.starts is None else {text: self.values, starts: self.starts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Names:
        numbers, text, starts = cls.ARRAYS
        return cls(arrays[numbers]) if numbers in arrays else cls(arrays[text], arrays[starts])


def _coded(name: str | bytes) -> bytes:
    """Return a text as UTF-8; refuse bytes of another encoding."""
    try:
        return name.encode() if isinstance(name, str) else name.decode().encode()
    except UnicodeError:
        fix = "give names as text, such as np.char.decode(names, 'latin-1')"
        raise InputError(f"the name {one_line(repr(name), 60)} is not UTF-8: {fix}") from None
