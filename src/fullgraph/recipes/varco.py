"""VARCO: few columns early, all of them late (arXiv:2406.17611); and fixed ratios, its baselines."""

from dataclasses import dataclass

from fullgraph.codec import Subsample
from fullgraph.codec.rate import Constant, Exponential, Linear, RateSchedule, Step
from fullgraph.errors import InputError
from fullgraph.exchange import Except, Wire, Wires
from fullgraph.recipes.base import Recipe

SCHEDULES = ("linear", "exponential", "step")


@dataclass(frozen=True, kw_only=True)
class Varco(Recipe):
    """The rate falls over the run's epochs; the last layer is not compressed."""

    def wires(self, *, epochs: int, layers: int) -> Wires:
        codec = Subsample(self.rate(epochs), rescale=self.options.get("rescale", False))
        return Except(wire=Wire(codec=codec), layer=layers - 1, other=Wire())

    def rate(self, epochs: int) -> RateSchedule:
        o = self.options
        if "ratio" in o:
            return Constant(o["ratio"])
        ends = {"c_max": o["c_max"], "c_min": o["c_min"]}
        if o["schedule"] == "step":
            return Step(every=max(1, int(epochs / o["slope"] / 8)), **ends)
        kind = Exponential if o["schedule"] == "exponential" else Linear
        return kind(steps=epochs, slope=o["slope"], **ends)


def varco(
    c_max: float = 128.0, c_min: float = 1.0, slope: float = 5.0, schedule: str = "linear", rescale: bool = False
) -> Recipe:
    """A random subset of columns, from 1/c_max of them to all by 1/slope of the run."""
    if schedule not in SCHEDULES:
        raise InputError(f"schedule {schedule!r} is unknown; known: {', '.join(SCHEDULES)}")
    options = {"c_max": c_max, "c_min": c_min, "slope": slope, "schedule": schedule, "rescale": rescale}
    return _checked(Varco(name="varco", options=options, narrow_first=False))


def fixed(ratio: float = 4.0) -> Recipe:
    """The same share of columns, 1/ratio, at every step."""
    return _checked(Varco(name="fixed", options={"ratio": ratio}, narrow_first=False))


def _checked(recipe: Varco) -> Varco:
    recipe.rate(100)  # bad numbers are refused here, not in the ranks
    return recipe
