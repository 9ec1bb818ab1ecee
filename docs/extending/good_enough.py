"""A callback: end the run once the validation score is good enough."""

from dataclasses import dataclass

from fullgraph.values import Value


@dataclass(frozen=True)
class GoodEnough(Value):
    """`record` has the epoch, its loss, its seconds and bytes, and, where it was evaluated, train, val and test."""

    val: float = 0.9

    def __call__(self, record):
        return record.val is not None and record.val >= self.val  # True: this epoch is the last
