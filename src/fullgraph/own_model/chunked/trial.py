"""A trial on a few rows of a layer: its memory, the weights it reads, and whether its rows are independent."""

from dataclasses import dataclass
from typing import Any

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
BACKWARD = 2  # gradients alive at the same time, in units of the widest tensor


@dataclass(frozen=True)
class Found:
    """The result of a trial."""

    arc_bytes: float  # bytes per edge, forward and backward
    weights: list[Tensor]  # weights that the functions read beside their arguments


class _Bytes(TorchDispatchMode):
    """Counts the bytes of all results, and of the largest one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.largest = 0
        self._seen: set[int] = set()
        self._held: list[Any] = []  # references, so that no address is reused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for x in flat((*args, *kwargs.values())):  # a view of all edges takes no memory
                self._is_new(x.untyped_storage())
            for x in flat(out):
                storage = x.untyped_storage()
                if self._is_new(storage):
                    self.total += storage.nbytes()
                    self.largest = max(self.largest, storage.nbytes())
        return out

    def _is_new(self, storage: Any) -> bool:
        if storage.data_ptr() in self._seen:
            return False
        self._seen.add(storage.data_ptr())
        self._held.append(storage)
        return True


def tried(steps: Steps, chunks: list[Chunk]) -> Found:
    """Run the first chunk as a whole and as two chunks; raise NotInChunks if the results differ."""
    whole, *parts = chunks
    tensors, train = steps.arguments.tensors, torch.is_grad_enabled()
    with_grad = [train and x.requires_grad for x in tensors]
    buffers = [(x, x.clone()) for x in steps.conv.buffers()]
    first, keeping = _number(), steps.forward.keeping
    steps.trying = steps.forward.keeping = True  # a checkpoint around the layer must keep nothing of the trial
    try:
        with _Bytes() as count, saved_tensors_hooks(_same, _same):
            leaves = steps.arguments.leaves(whole, tensors, with_grad)
            out = steps.of(whole, leaves)
        _check_attributes(steps)
        weights = list(read_beside(out, leaves.values(), first))
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
    nbytes = count.total + (BACKWARD * count.largest if train else 0)
    return Found(nbytes / max(1, whole.num_arcs), weights)


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
