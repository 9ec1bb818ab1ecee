"""The protocol of codecs, and the codecs that only change the number format."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fullgraph.transport.key import Key

Shape = tuple[int, ...]


class Codec(Protocol):
    """Turns rows into bytes and back. Sender and receiver compute the number of bytes without communication."""

    def encode(self, x: Tensor, key: Key) -> Tensor: ...
    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor: ...
    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int: ...


@dataclass(frozen=True, slots=True)
class Full:
    """Keep every number unchanged:  decode(encode(x)) == x."""

    def encode(self, x: Tensor, key: Key) -> Tensor:
        return x.contiguous().view(-1).view(torch.uint8)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        return wire.view(dtype).view(shape)

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return prod(shape) * dtype.itemsize


class _Cast:
    """Round every number to a 16-bit format; the relative error is at most half a unit in the last place."""

    wire_dtype: ClassVar[torch.dtype]

    def encode(self, x: Tensor, key: Key) -> Tensor:
        return x.to(self.wire_dtype).contiguous().view(-1).view(torch.uint8)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        return wire.view(self.wire_dtype).view(shape).to(dtype)

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return prod(shape) * self.wire_dtype.itemsize


@dataclass(frozen=True)
class Half(_Cast):
    """IEEE half precision: 11 significant bits; magnitudes beyond 65504 saturate and do not become infinite."""

    wire_dtype: ClassVar[torch.dtype] = torch.float16

    def encode(self, x: Tensor, key: Key) -> Tensor:
        limit = torch.finfo(torch.float16).max
        return super().encode(x.clamp(-limit, limit), key)


@dataclass(frozen=True)
class BFloat16(_Cast):
    """bfloat16: 8 significant bits and the range of float32."""

    wire_dtype: ClassVar[torch.dtype] = torch.bfloat16
