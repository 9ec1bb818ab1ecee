"""The last steps of a run, exact: no chunk, no stage and no history, but all layers of a rank's own rows."""

from dataclasses import dataclass

from torch import Tensor, nn

from fullgraph.exchange import Held
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.placement.shard import Executor, Loss, Shard
from fullgraph.placement.view import Tensors


def first_exact(exact_from: float, epochs: int) -> int | None:
    """The first exact step where a run of so many is exact from this share of them on; None: no step is."""
    return None if exact_from == 1 else round(exact_from * epochs)


@dataclass(eq=False, kw_only=True)
class ExactEnd:
    """Steps of one executor up to step `first`, and of an exact one from there on.

    What the early one holds is let go at step `first`, and is in no checkpoint after it.
    """

    early: Executor | None
    exact: Executor
    first: int

    @property
    def now(self) -> Executor:
        return self.exact if self.early is None else self.early

    @property
    def one_pass(self) -> bool:
        return self.now.one_pass

    def step(self, model: nn.Module, shard: Shard, loss: Loss) -> Tensor:
        if self.early is not None and shard.clock.step >= self.first:
            shard.clock.retire()
            self.early = None
        return self.now.step(model, shard, loss)

    def choices(self) -> dict[str, object]:
        return self.now.choices()

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        return self.now.plans(model)

    def held(self) -> Held:
        return self.now.held()

    def load_state(self, state: Tensors) -> None:
        self.now.load_state(state)
