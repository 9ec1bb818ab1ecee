"""--trace: every rank keeps the spans of a few epochs, and rank 0 writes them to one file."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from fullgraph.device import profiled
from fullgraph.nn import Chain
from fullgraph.report import EpochRecord, Meter
from fullgraph.report.events import Slice, slices_of, trace_events
from fullgraph.report.spans import Rows
from fullgraph.report.terminal import tolerated
from fullgraph.storage import whole_file, write_whole
from fullgraph.train.trainer import Trainer
from fullgraph.transport import Key
from fullgraph.transport.gather import texts_for_first

FILE, TORCH = "trace.json", "torch_trace"
MOST_SLICES = 100_000  # per rank; a trace with more slices ends early


class Tracer:
    """Called after every epoch, on every rank. It writes the trace after the last traced epoch."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer, self.folder, self.config = trainer, folder, trainer.config
        self.first = trainer.epoch + self.config.trace_skip  # epochs done when the trace begins
        self.slices: list[Slice] = []
        self.rows = Rows()
        self.layers: Layers | None = None
        self.torch: torch.profiler.profile | None = None
        self.written = False
        self._begin()

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if self.layers is not None and len(self.slices) < MOST_SLICES:
            self.slices += slices_of(trainer.meter.last, self.rows)
        if trainer.epoch == self.first + self.config.trace_epochs:
            self.finish()
        else:
            self._begin()

    def _begin(self) -> None:
        if self.trainer.epoch != self.first or self.written:
            return
        self.layers = Layers(self.trainer.model, self.trainer.meter)
        if self.config.trace_torch:
            self.torch = torch.profiler.profile(activities=profiled())
            self.torch.start()

    def finish(self) -> None:
        """Write the recorded spans, once; every rank must call this."""
        if self.written:
            return
        self.written = True
        transport = self.trainer.shard.transport
        if self.layers is not None:
            self.layers.remove()
        if self.torch is not None:
            self.torch.stop()
            path = self.folder / TORCH / f"rank-{transport.rank}.json"
            with tolerated(path):
                path.parent.mkdir(exist_ok=True)
                with whole_file(path) as staged:
                    self.torch.export_chrome_trace(str(staged))
        text = json.dumps([platform.node(), self.slices])
        texts = texts_for_first(text, transport, Key("trace", self.trainer.epoch))
        if transport.rank == 0:
            with tolerated(self.folder / FILE):
                hosts, ranks = zip(*map(json.loads, texts), strict=True)
                document = trace_events([[Slice(*part) for part in own] for own in ranks], hosts)
                write_whole(self.folder / FILE, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
        self.slices = []


class Layers:
    """Reports each layer's forward and backward pass to a meter, until removed.

    A layer's backward pass begins when the gradient of its output is ready. It ends when that of another layer is
    ready, or with the whole backward pass.
    """

    def __init__(self, model: nn.Module, meter: Meter) -> None:
        self.meter = meter
        self._open: tuple[str, Any] | None = None  # the layer in its backward pass, and its start
        self._called = False  # whether torch will call `_end` after the backward pass
        self._starts: list[Any] = []
        self._handles: list[RemovableHandle] = []
        for name, layer in layers_of(model).items():
            self._handles.append(layer.register_forward_pre_hook(self._enter))
            # Always: recomputation under checkpointing ends with an exception inside torch when it has all tensors.
            self._handles.append(layer.register_forward_hook(self._left(name), always_call=True))

    def _enter(self, layer: nn.Module, args: Any) -> None:
        self._starts.append(self.meter.watch.mark())

    def _left(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def left(layer: nn.Module, args: Any, out: Any) -> None:
            chunk = getattr(getattr(args[1], "chunk", None), "index", None) if len(args) > 1 else None
            about = name if chunk is None else f"{name} chunk {chunk}"
            if layer.training:
                self.meter.add("forward", (self._starts.pop(), self.meter.watch.mark()), about=about)
            else:
                self._starts.pop()
            rows = out[0] if isinstance(out, tuple) else out
            if isinstance(rows, Tensor) and rows.requires_grad:
                rows.register_hook(lambda _: self._walk_back(about))

        return left

    def _walk_back(self, about: str) -> None:
        self._close()
        self._open = about, self.meter.watch.mark()
        if not self._called:
            self._called = True
            Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._close()
        self._called = False

    def _close(self) -> None:
        if self._open is not None:
            self.meter.add("backward", (self._open[1], self.meter.watch.mark()), about=self._open[0])
            self._open = None

    def __deepcopy__(self, memo: object) -> "Layers":
        return self  # a copy of the model reports to the same meter

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a chain; for other models, the outermost modules, with module lists split up."""
    if isinstance(model, Chain):
        return {f"layer {block.layer}": block for block in model.blocks}
    layers: dict[str, nn.Module] = {}
    for name, part in getattr(model, "module", model).named_children():
        if isinstance(part, nn.ModuleList):
            layers |= {f"{name} {number}": item for number, item in enumerate(part)}
        else:
            layers[name] = part
    return layers
