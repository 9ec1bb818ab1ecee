"""Checks of a user's own codec or schedule at every call; ours are not checked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.codec import ChannelFacts, Codec, Memory, Message, Shape
from fullgraph.errors import InputError, one_line
from fullgraph.exchange.schedule import Schedule, Turn
from fullgraph.own_code import is_ours, own_code, told, unfit
from fullgraph.transport import Key


def checked_codec(codec: Codec) -> Codec:
    if not all(hasattr(codec, name) for name in ("encode", "decode", "nbytes")):
        raise InputError(f"codec={one_line(codec, 60)}: give a codec, such as fullgraph.codec.LowBit(4)")
    return codec if is_ours(codec) else CheckedCodec(codec)


def asks_grades(codec: Codec) -> bool:
    return bool(getattr(_own(codec), "graded", False))


def memory_of(codec: Codec, facts: ChannelFacts) -> Memory | None:
    """A codec's memory of one direction of a channel; None if it has none."""
    codec = _own(codec)
    make = getattr(codec, "for_channel", None)
    if make is None:
        return None
    with own_code(codec):
        memory = make(facts)
    if not isinstance(memory, Memory):
        raise unfit(make, f"returned {told(memory)}: return a fullgraph.codec.Memory")
    return memory


def _own(codec: Codec) -> Codec:
    return codec.codec if isinstance(codec, CheckedCodec) else codec


def codec_of(memory: Memory, message: Message) -> Codec:
    with own_code(memory):
        codec = memory.codec(message)
    return checked_codec(codec)


def note(memory: Memory, message: Message, wire: Tensor) -> None:
    with own_code(memory):
        memory.note(message, wire)


def is_due(memory: Memory, step: int) -> bool:
    with own_code(memory):
        return memory.due(step)


def choose(memory: Memory, sent: dict[int, Shape], come: dict[int, Shape]) -> None:
    with own_code(memory):
        memory.choose(sent, come)


def checked_schedule(schedule: Schedule) -> Schedule:
    if not all(hasattr(schedule, name) for name in ("depth", "turn")):
        raise InputError(f"schedule={one_line(schedule, 60)}: give a schedule, such as fullgraph.exchange.Skip(4)")
    return schedule if is_ours(schedule) else CheckedSchedule(schedule)


@dataclass(frozen=True)
class CheckedCodec:
    """The same codec; a wrong result raises an error that names its file and line."""

    codec: Codec

    def encode(self, x: Tensor, key: Key) -> Tensor:
        size = self.nbytes(tuple(x.shape), x.dtype, key)
        with own_code(self.codec):
            wire = self.codec.encode(x, key)
        if not isinstance(wire, Tensor) or wire.dtype != torch.uint8 or wire.shape != (size,):
            given = told(wire)
            raise unfit(
                self.codec.encode, f"returned {given}: return a torch tensor of uint8, ({size},), as nbytes says"
            )
        return wire

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        with own_code(self.codec):
            rows = self.codec.decode(wire, shape, dtype, key)
        if not isinstance(rows, Tensor) or rows.dtype != dtype or rows.shape != shape:
            given, wanted = told(rows), f"{dtype}".removeprefix("torch.")
            raise unfit(self.codec.decode, f"returned {given}: return a torch tensor of {wanted}, {tuple(shape)}")
        return rows

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        with own_code(self.codec):
            size = self.codec.nbytes(shape, dtype, key)
        if not isinstance(size, int) or size < 0:
            raise unfit(self.codec.nbytes, f"returned {told(size)}: return a whole number of bytes")
        return size


@dataclass(frozen=True)
class CheckedSchedule:
    """The same schedule; a wrong result raises an error that names its file and line."""

    schedule: Schedule

    @property
    def depth(self) -> int:
        with own_code(self.schedule):
            depth = self.schedule.depth
        if not isinstance(depth, int) or depth < 0:
            raise unfit(self.schedule, f"has the depth {told(depth)}: give the largest lag that it reads, 0 or more")
        return depth

    def turn(self, step: int) -> Turn:
        with own_code(self.schedule):
            turn = self.schedule.turn(step)
        if not isinstance(turn, Turn):
            raise unfit(
                self.schedule.turn, f"returned {told(turn)}: return fullgraph.exchange.Turn(send=..., read=...)"
            )
        if not (turn.read is None or (isinstance(turn.read, int) and step - self.depth <= turn.read <= step)):
            raise unfit(
                self.schedule.turn,
                f"reads {turn.read!r} at step {step}: read None, or {step - self.depth} (by its depth) to {step}",
            )
        if turn.read is not None and not (turn.send if turn.read == step else self._sends(turn.read)):
            raise unfit(self.schedule.turn, f"reads step {turn.read} at step {step}, which was never sent: send it")
        return turn

    def _sends(self, step: int) -> bool:
        with own_code(self.schedule):
            return step >= 0 and self.schedule.turn(step).send
