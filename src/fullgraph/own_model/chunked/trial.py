"""A trial on a few rows of a layer: its memory, the weights it reads, and whether its rows are independent."""

from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph.own_model.chunked.arcs import Chunk
from fullgraph.own_model.chunked.steps import Steps, read_beside
from fullgraph.own_model.forward import NotInChunks
from fullgraph.own_model.rows.follow import flat

ARCS = 2048  # edges of the trial
CLOSE = 1e-3  # tolerance between two chunks and one: matrix products round differently


@dataclass(frozen=True)
class Found:
    """The result of a trial."""

    arc_bytes: float  # bytes per edge that exist at the same time, forward and backward
    weights: list[Tensor]  # weights that the functions read beside their arguments


class _Live(TorchDispatchMode):
    """Counts the bytes of results that exist at the same time, and keeps the largest count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._held: dict[int, Any] = {}  # references to storages that exist, by number
        self._known: set[int] = set()  # their addresses
        self._number = count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            given = {x.untyped_storage().data_ptr() for x in flat((*args, *kwargs.values()))}
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for x in flat(out):
                storage = x.untyped_storage()
                if storage.data_ptr() not in given:  # a view of what exists takes no memory
                    self._hold(storage)
        return out

    def _hold(self, storage: Any) -> None:
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if not nbytes or address in self._known:
            return
        number = next(self._number)

        def gone(_: Any) -> None:
            self.now -= nbytes
            self._known.discard(address)
            del self._held[number]

        self._known.add(address)
        self._held[number] = ref(storage, gone)
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def tried(steps: Steps, chunks: list[Chunk]) -> Found:
    """Run the first chunk as a whole and as two chunks; raise NotInChunks if the results differ."""
    whole, *parts = chunks
    tensors, train = steps.arguments.tensors, torch.is_grad_enabled()
    with_grad = [train and x.requires_grad for x in tensors]
    buffers = [(x, x.clone()) for x in steps.conv.buffers()]
    first, keeping = _number(), steps.forward.keeping
    steps.trying = steps.forward.keeping = True  # a checkpoint around the layer must keep nothing of the trial
    try:
        with _Live() as live, saved_tensors_hooks(_same, _same):
            leaves = steps.arguments.leaves(whole, tensors, with_grad)
            out = steps.of(whole, leaves)
            weights = list(read_beside(out, leaves.values(), first))
            nbytes = _with_gradients(live, out, leaves, weights)
        _check_attributes(steps)
        with torch.no_grad():
            apart = [steps.of(part, steps.arguments.leaves(part, tensors, [False] * len(tensors))) for part in parts]
    finally:
        steps.trying, steps.forward.keeping = False, keeping
        steps.attributes.put_back()
        for x, before in buffers:
            if x._version != before._version:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    x.copy_(before)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        _compare(out.detach(), torch.cat(apart, steps.dim), steps)
    return Found(nbytes / max(1, whole.num_arcs), weights)


def _with_gradients(live: _Live, out: Tensor, leaves: dict[str, Tensor], weights: list[Tensor]) -> int:
    """The bytes that one forward and backward pass over the rows takes at the same time, gradients included."""
    if not out.requires_grad:
        return live.peak
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    of_weights = [weight for weight in weights if weight.requires_grad]
    with torch._C.DisableTorchFunction():  # the guard refuses gradients inside of a forward pass
        found = torch.autograd.grad(out, [*wanted, *of_weights], torch.ones_like(out), allow_unused=True)
    sizes = [0 if grad is None else grad.nbytes for grad in found]
    summed = max(sizes[: len(wanted)], default=0)  # the sums of a gradient by source
    return max(live.peak, live.now + summed) - sum(sizes[len(wanted) :])


def _same(x: Tensor) -> Tensor:
    return x


def _number() -> int:
    """A number smaller than that of every autograd node created from now on."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).clone().grad_fn
    number: int = node._sequence_nr()
    return number


def _check_attributes(steps: Steps) -> None:
    changed = steps.attributes.changed()
    if changed and not (changed == "_alpha" and type(steps.conv).__module__.startswith("torch_geometric.")):
        raise NotInChunks(f"its messages write to self.{changed}")


def _compare(whole: Tensor, apart: Tensor, steps: Steps) -> None:
    if whole.shape != apart.shape:
        raise NotInChunks("the shape of its rows depends on other rows")
    if not whole.is_floating_point() or not whole.numel():
        return
    one, two = whole.double(), apart.double()
    scale = one[one.isfinite()].abs().max() if one.isfinite().any() else one.new_ones(())
    if not torch.allclose(one, two, rtol=CLOSE, atol=float(scale) * CLOSE, equal_nan=True):
        raise NotInChunks("its rows depend on other rows")
