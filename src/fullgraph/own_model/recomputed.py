"""Activation checkpointing in a user's model: a part that the backward pass computes again gets the same numbers.

`torch.utils.checkpoint.checkpoint`, and layers that call it, run inside of a distributed forward pass with our context.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as torchs

from fullgraph.own_model.forward import Counts, Forward, running
from fullgraph.own_model.mode import entered


def checkpoint_context() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """For torch.utils.checkpoint's `context_fn`: a recomputed part receives and draws the same numbers as in its first
    run. Calls without a `context_fn` get it by themselves.

    checkpoint(self.block, x, edge_index, use_reentrant=False, context_fn=fg.checkpoint_context)
    """
    forward = running.get()
    if forward is None:  # the model runs alone, in one process
        return ExitStack(), ExitStack()
    return forward.kept(), _again(forward, replace(forward.counts))


@contextmanager
def _again(forward: Forward, start: Counts) -> Iterator[None]:
    with forward.again(start), entered(forward):
        yield


def give_contexts() -> None:
    """From now on, a checkpoint inside of a distributed forward pass has our context."""
    generator = torchs._checkpoint_without_reentrant_generator
    if not hasattr(generator, "__wrapped__"):
        torchs._checkpoint_without_reentrant_generator = _with_context(generator)
        apply: Any = staticmethod(_not_reentrant(torchs.CheckpointFunction.apply))
        torchs.CheckpointFunction.apply = apply  # type: ignore[method-assign]


def _with_context(generator: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(generator)
    def given(function: Any, preserve: bool, context_fn: Any, *args: Any, **kwargs: Any) -> Any:
        if running.get() is not None and context_fn is torchs.noop_context_fn:
            context_fn = checkpoint_context
        return generator(function, preserve, context_fn, *args, **kwargs)

    return given


def _not_reentrant(apply: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(apply)
    def given(function: Any, preserve: bool, *args: Any) -> Any:
        """A reentrant checkpoint, which has no context: gradients flow only if an input has one."""
        if running.get() is None:
            return apply(function, preserve, *args)
        if torch.is_grad_enabled() and not any(isinstance(x, Tensor) and x.requires_grad for x in args):
            with torch.no_grad():
                return function(*args)
        return torchs.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    return given
