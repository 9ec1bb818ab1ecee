"""Decoders: compute a pair's score from its two nodes' rows. A user's decoder is a torch module called with both."""

import inspect
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fullgraph.described import described
from fullgraph.nn.spec import drawing
from fullgraph.own_code import own_code, told, unfit
from fullgraph.tasks.losses import full, is_floats
from fullgraph.values import Value

WIDTHS = ("in_channels", "in_features", "in_dim", "width", "hidden_channels")


class DotProduct(nn.Module):
    """s = <a, b>."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (full(a) * full(b)).sum(1)


@dataclass(frozen=True)
class Dot(Value):
    """The dot product of two rows; no weights."""

    def build(self, width: int, *, seed: int, dtype: torch.dtype) -> nn.Module:
        return DotProduct()


@dataclass(frozen=True, kw_only=True)
class OwnDecoder(Value):
    """A user's decoder module, with its constructor's arguments except the width of a row."""

    module: ClassVar[type[nn.Module]]

    def build(self, width: int, *, seed: int, dtype: torch.dtype) -> nn.Module:
        """Build the module; equal seeds give equal weights on every rank."""
        given = {one.name: getattr(self, one.name) for one in fields_of(self)}
        names = inspect.signature(self.module).parameters
        fix = "a decoder is constructed with -t KEY=VALUE and called with two tensors of rows"
        with drawing(seed), own_code(self.module, fix=fix):
            decoder = self.module(**given, **{name: width for name in WIDTHS if name in names}).to(dtype)
            _check(decoder, torch.randn(6, width, dtype=dtype), torch.randn(6, width, dtype=dtype))
        return decoder


@torch.no_grad()
def _check(decoder: nn.Module, a: Tensor, b: Tensor) -> None:
    """Check that a pair's score does not depend on the other pairs: each number of ranks groups pairs differently."""
    whole = scored(decoder, a, b)
    parts = torch.cat([scored(decoder, a[:1], b[:1]), scored(decoder, a[1:], b[1:])])
    if not torch.allclose(whole, parts, rtol=1e-3, atol=1e-5):
        raise unfit(
            decoder,
            "scores a pair differently among other pairs: leave out dropout, batch norm and whatever reads other pairs",
        )


def scored(decoder: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """A decoder's scores as a column, [p, 1]."""
    with own_code(decoder):
        found = decoder(a, b)
    if not is_floats(found) or found.shape not in ((len(a),), (len(a), 1)):
        raise unfit(decoder, f"returned {told(found)} for {len(a)} pairs: return one score per pair")
    return full(found).view(len(a), 1)


@cache
def as_decoder(kind: type) -> type:
    """Describe a torch module class as an `OwnDecoder`; return any other class unchanged."""
    if not issubclass(kind, nn.Module):
        return kind
    return described(kind, OwnDecoder, "module", _field, WIDTHS)


def _field(parameter: inspect.Parameter) -> tuple[Any, Any]:
    default = parameter.default
    if isinstance(default, bool | int | float | str):
        return type(default), field(default=default)
    return int | float | str, field()
