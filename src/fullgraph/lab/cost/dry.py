"""A dry run: record the trainer's real steps, carried out on tensors without data."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fullgraph.errors import InputError
from fullgraph.lab.cost import layouts
from fullgraph.lab.cost.counts import META, Counts
from fullgraph.lab.cost.script import Event, Post, Step, Sum, Wait, Work
from fullgraph.ops.kernels_meta import listening
from fullgraph.placement import Placement
from fullgraph.report import Meter
from fullgraph.run import Run, placement_of
from fullgraph.tasks import node_task
from fullgraph.train.trainer import Trainer
from fullgraph.transport import PLAIN, ByPeer, Coding, Key, Pending, Sizes

MANY = 32  # peers
# Operations that write into their first tensor. Without data there is nothing to write, so they are not called.
WRITES = {"copy_", "relu_", "add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "zero_", "fill_"}
A = TypeVar("A")
B = TypeVar("B")
# Names of torch operations: matrix products, operations on chosen rows, and operations without work.
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "addmv"}
CHOSEN = {"index", "index_select", "index_put", "index_put_", "index_add", "index_add_", "index_copy_", "gather",
          "scatter_", "scatter_add_", "_index_put_impl_", "embedding"}  # fmt: skip
NOTHING = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh",
           "_local_scalar_dense", "_record_function_enter_new", "_record_function_exit", "set_"}  # fmt: skip


class OpRecorder(TorchDispatchMode):
    """Records all operations in its block as events, with the bytes of all live tensors created there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def told(self, kind: str, sizes: tuple[int, ...]) -> None:
        self.events.append(Work(kind, sizes))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        idle = name in WRITES and args[0].is_meta
        out = args[0] if idle else func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if name not in NOTHING and not func.is_view:
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            if any(t.is_meta for t in (*given, *made)):
                self._classify(name, given, made)
        for tensor in made:
            self._follow(tensor)
        return out

    def _classify(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        if name in PRODUCTS:
            left, right = [t for t in given if t.dim() >= 2][-2:]
            self.told("dense", (left.shape[-2], left.shape[-1], right.shape[-1]))
        elif name in CHOSEN:
            rows = [t for t in (*given, *made) if t.dim() >= 1 and t.is_floating_point()]
            fewest = min(rows, key=lambda t: t.shape[0]) if rows else given[0]
            self.told("rows", (fewest.shape[0], fewest.numel() // max(1, fewest.shape[0])))
        else:
            fresh = {id(t) for t in given}
            moved = sum(t.nbytes for t in given) + sum(t.nbytes for t in made if id(t) not in fresh)
            self.told("pass", (moved,))

    def _follow(self, tensor: Tensor) -> None:
        """Count a tensor's memory until the tensor is freed."""
        if not tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place in self._known:
            return
        self._known.add(place)
        size = storage.nbytes()
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.alive -= size

    @contextmanager
    def step(self) -> Iterator[Callable[[], Step]]:
        """Record the block as one step; the yielded function returns the step afterwards."""
        self.events, self.peak = [], self.alive
        events = self.events
        with self, listening(self.told):
            yield lambda: Step(tuple(events), self.peak)

    def aside(self, work: Callable[[], B]) -> tuple[B, tuple[Work, ...]]:
        """Run `work` and return its result and its events, which are left out of the step's own order."""
        before, self.events = self.events, []
        try:
            found = work()
            return found, tuple(event for event in self.events if isinstance(event, Work))
        finally:
            self.events = before


def _shape(rows: Tensor) -> object:
    return tuple(rows.shape)


def _wire(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=META)


class _Coming:
    def __init__(self, watch: OpRecorder, post: Post, rows: ByPeer) -> None:
        self.watch, self.post, self.rows = watch, post, rows

    def wait(self) -> ByPeer:
        self.watch.events.append(Wait(self.post))
        return self.rows


class _Summed:
    def __init__(self, watch: OpRecorder, sum_: Sum, x: Tensor) -> None:
        self.watch, self.sum, self.x = watch, sum_, x

    def wait(self) -> Tensor:
        self.watch.events.append(Wait(self.sum))
        return self.x


class RecordingTransport:
    """A transport of one rank that sends nothing and records its messages."""

    def __init__(self, watch: OpRecorder, rank: int, size: int, lane: int = 0) -> None:
        self.watch, self.rank, self.size, self.lane = watch, rank, size, lane
        self.forks = 0

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        sent, encoding = self._each(outgoing, lambda peer, rows: coding.encode(peer, rows).numel(), _shape)
        rows, decoding = self._each(incoming, lambda peer, size: coding.decode(peer, _wire(size)), int)
        post = Post(key, sent, dict(incoming), encoding, decoding, self.lane)
        self.watch.events.append(post)
        return _Coming(self.watch, post, rows)

    def _each(
        self, of_peers: dict[int, A], call: Callable[[int, A], B], alike: Callable[[A], object]
    ) -> tuple[dict[int, B], tuple[Work, ...]]:
        """Run a call for each peer and record its work; among many peers, one stands for all with equal messages."""
        found: dict[int, B] = {}
        work: list[Work] = []
        known: dict[object, tuple[B, tuple[Work, ...]]] = {}
        for peer, given in of_peers.items():
            kind = alike(given) if len(of_peers) > MANY else peer
            if kind not in known:
                known[kind] = self.watch.aside(partial(call, peer, given))
            found[peer], done = known[kind]
            work += done
        return found, tuple(work)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        sum_ = Sum(key, x.nbytes)
        self.watch.events.append(sum_)
        return _Summed(self.watch, sum_, x)

    def fork(self) -> "RecordingTransport":
        self.forks += 1
        return RecordingTransport(self.watch, self.rank, self.size, self.lane + self.forks)

    def away(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def dry_run(run: Run, counts: Counts, rank: int, steps: int, placement: Placement | None = None) -> list[Step]:
    """Record the first steps of a rank. They show a wire's schedule: late rows are waited for in a later step.

    placement: replaces the run's placement.
    """
    watch, facts = OpRecorder(), counts.graph
    transport = RecordingTransport(watch, rank, len(counts.ranks))
    placement = replace(placement or placement_of(run), device=META)
    taken = []
    try:
        with watch.step():  # tensors that are kept between steps are counted, too
            shard = layouts.place(placement, counts, transport, run.wires, run.model.aggregation)
        task = node_task(classes=facts.classes, multilabel=facts.multilabel, real=facts.real)
        model = run.model.outline(facts.features, facts.classes).to(getattr(torch, run.train.dtype))
        trainer = Trainer(model, shard, task, run.train, Meter(detail=False))
        for _ in range(steps):
            with watch.step() as found:
                trainer.train_step()
            taken.append(found())
    except (NotImplementedError, RuntimeError) as error:  # torch raises either of them where a number is needed
        if "meta tensor" not in str(error):
            raise
        told = f"what {run.strategy.name} sends depends on the values of rows"
        raise InputError(f"{told}, so it cannot be predicted; measure it with `fullgraph bench`") from error
    return taken
