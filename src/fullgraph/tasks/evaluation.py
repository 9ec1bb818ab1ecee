"""How right a model is, counted over all ranks: by class, by size of the error, or by probability of a pair.

Beside the score stands that of the best constant answer: the commonest class, the mean, or equal scores for all pairs.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fullgraph.data.splits import SPLITS
from fullgraph.report.evaluation import MOST_CLASSES, Evaluation
from fullgraph.tasks.base import Scores, scored_by
from fullgraph.tasks.metrics import Metric
from fullgraph.transport import Key, Transport

NUM_BINS = 21
WIDEST = 3.0  # root mean square errors; larger errors count in the outermost bins
Rows = Mapping[str, tuple[Tensor, Tensor]]  # by split: the model's output and the targets of this rank's rows


class Counter:
    """Sums counts over ranks, each sum under its own name."""

    def __init__(self, transport: Transport, step: int) -> None:
        self.transport, self.step, self._sums = transport, step, 0

    def key(self) -> Key:
        self._sums += 1
        return Key(f"evaluate/{self._sums}", self.step)

    def total(self, mine: Tensor) -> Tensor:
        return self.transport.all_reduce(self.key(), mine.double().cpu().contiguous()).wait()

    def whole(self, mine: Tensor) -> tuple[int, ...]:
        return tuple(int(value) for value in self.total(mine).tolist())


def evaluation_of(kind: str, rows: Rows, metric: Metric, transport: Transport, step: int) -> Evaluation:
    """Evaluate the rows of all ranks; every rank returns the same."""
    counter = Counter(transport, step)
    sizes = counter.whole(torch.tensor([len(rows[split][1]) for split in SPLITS]))
    counts = dict(zip(SPLITS, sizes, strict=True))
    split = next((name for name in ("test", "val", "train") if counts[name]), "train")
    out, target = rows[split]
    constant: Scores = {}
    answer = _constant(kind, *rows["train"], counter)
    for name in SPLITS:
        said, truth = rows[name]
        same = torch.zeros_like(said) if answer is None else answer.to(said).expand(len(said), -1).contiguous()
        constant[name] = scored_by(metric, same, truth, transport, counter.key()) if counts[name] else None
    return Evaluation(
        kind=kind,
        split=split,
        rows=counts,
        constant=constant,
        **COUNTED[kind](out, target, counter),  # type: ignore[arg-type]
    )


def _constant(kind: str, out: Tensor, target: Tensor, counter: Counter) -> Tensor | None:
    """The row [1, C] that answers best if it is the answer for every row; None: all pairs score the same."""
    if kind == "pairs":
        return None
    counts = torch.bincount(target, minlength=out.shape[1]) if kind == "classes" else target.double().sum(0)
    sums = counter.total(torch.cat([counts.cpu(), torch.tensor([len(target)])]).double())
    means = sums[None, :-1] / sums[-1].clamp(min=1)
    return {"classes": means.clamp(min=1e-9).log(), "sets": means.logit(1e-6), "numbers": means}[kind]


def _of_classes(out: Tensor, target: Tensor, counter: Counter) -> dict[str, object]:
    classes, said = out.shape[1], out.argmax(1)
    pairs = target * classes + said
    if classes <= MOST_CLASSES:
        square = counter.total(torch.bincount(pairs, minlength=classes * classes)).view(classes, classes).long()
        found: dict[str, object] = {"confusion": tuple(map(tuple, square.tolist()))}
        sums = square.sum(1), square.sum(0), square.diagonal()
        return found | dict(zip(("labelled", "predicted", "right"), (tuple(s.tolist()) for s in sums), strict=True))
    each = [torch.bincount(one, minlength=classes) for one in (target, said, target[target == said])]
    return _by_class(each[0], each[1], each[2], counter)


def _of_sets(out: Tensor, target: Tensor, counter: Counter) -> dict[str, object]:
    said, true = out > 0, target > 0.5
    return _by_class(true.sum(0), said.sum(0), (said & true).sum(0), counter)


def _by_class(labelled: Tensor, predicted: Tensor, right: Tensor, counter: Counter) -> dict[str, object]:
    sums = counter.total(torch.stack([labelled, predicted, right])).long().tolist()
    return dict(zip(("labelled", "predicted", "right"), map(tuple, sums), strict=True))


def _of_numbers(out: Tensor, target: Tensor, counter: Counter) -> dict[str, object]:
    """Errors, prediction - truth, of all columns."""
    error = (out.double() - target.double()).view(-1).cpu()
    squares, number = counter.total(error.new_tensor([float(error.square().sum()), error.numel()])).tolist()
    far = WIDEST * (squares / max(1.0, number)) ** 0.5 or 1.0
    return _histogram({"error": error}, -far, far, counter)


def _of_pairs(out: Tensor, target: Tensor, counter: Counter) -> dict[str, object]:
    chance, true = out.sigmoid().double().view(-1).cpu(), target.view(-1).cpu() > 0.5
    return _histogram({"edges": chance[true], "no edges": chance[~true]}, 0.0, 1.0, counter)


def _histogram(values: Mapping[str, Tensor], low: float, high: float, counter: Counter) -> dict[str, object]:
    inside = {name: one.clamp(low, high) for name, one in values.items()}
    bins = {name: counter.whole(torch.histc(one, NUM_BINS, low, high)) for name, one in inside.items()}
    return {"limits": tuple(torch.linspace(low, high, NUM_BINS + 1, dtype=torch.float64).tolist()), "bins": bins}


COUNTED: Mapping[str, Callable[[Tensor, Tensor, Counter], dict[str, object]]] = {
    "classes": _of_classes, "sets": _of_sets, "numbers": _of_numbers, "pairs": _of_pairs,
}  # fmt: skip
