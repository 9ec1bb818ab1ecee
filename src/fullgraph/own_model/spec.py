"""A user's module as a value of a run: a class whose fields are the arguments of the module's constructor.

    class Net(torch.nn.Module):
        def __init__(self, in_channels, hidden=64, out_channels=2): ...

    fullgraph train graph.npz --model net.py:Net -m hidden=32

The graph determines the widths of input and output, whichever of these names the constructor uses for them.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fullgraph.axes import MODELS
from fullgraph.described import described
from fullgraph.errors import InputError
from fullgraph.graph_types import GraphTypes
from fullgraph.nn.spec import drawing
from fullgraph.own_code import own_code, unfit
from fullgraph.own_model.inputs import Takes
from fullgraph.own_model.lazy import fill_lazy, two_nodes
from fullgraph.own_model.module import Distributed, distribute
from fullgraph.own_model.prepare import num_layers
from fullgraph.own_model.remembered import PassedChecks
from fullgraph.own_model.tables import has_table
from fullgraph.own_model.typed.arguments import NUMBERS, TYPES, arguments, asks_for_types, complete, one_type
from fullgraph.own_model.typed.forms import BY_TYPE, takes_dicts, takes_only_types
from fullgraph.partition import GraphFacts
from fullgraph.placement import Shard
from fullgraph.recipes import Strategy
from fullgraph.values import Value

IN = ("in_channels", "in_dim", "in_features", "in_feats", "input_dim", "num_features", "num_node_features")
OUT = ("out_channels", "out_dim", "out_features", "output_dim", "num_classes", "n_classes")
NODES = ("num_nodes", "n_nodes")
PLAIN = (bool, int, float, str)
GATHERS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BARE = (nn.Module, object)
TRUTH = {"true": True, "false": False}  # of options that only **kwargs takes
ARGS = (
    "takes *args alone, so a run cannot know what they mean; name a function in its place, such as "
    "`def make_net(in_channels, out_channels): return Net(in_channels, 64, out_channels)`"
)


@dataclass(frozen=True, kw_only=True)
class OwnModel(Value):
    """A user's module, and its constructor's arguments except the widths."""

    module: ClassVar[Callable[..., nn.Module]]
    aggregation: ClassVar[str] = "sum"  # the module reads arcs itself
    encodes: ClassVar[bool] = True
    hidden: ClassVar[int] = 1
    if_lacking: ClassVar[str] = (
        ": call the widths in_channels and out_channels, which the run fills in; give other options with -m KEY=VALUE"
    )
    hops: ClassVar[tuple[int | None, ...]] = ()  # a run finds them (live.py)

    @classmethod
    def widened(cls, options: Collection[str]) -> type["OwnModel"]:
        """The same value with fields for options that the constructor takes as **kwargs."""
        names, is_open = arguments_of(cls.module)
        more = tuple(sorted(set(options) - {one.name for one in fields(cls)} - set(names)))
        return spec_of(cls.module, more) if is_open and more else cls

    @property
    def name(self) -> str:
        return MODELS.label(self)

    @property
    def graph_layers(self) -> int:
        return num_layers(self.outline(8, 2))

    @property
    def layers(self) -> int:
        return self.graph_layers

    @property
    def forward_inputs(self) -> list[str] | None:
        """The arguments of its forward beside x and edge_index; None: a Data, with everything that the graph has."""
        takes = Takes.of(self.outline(1, 2))
        return None if takes.data else [name.removesuffix(BY_TYPE) for name in takes.names]

    def build(
        self, in_width: int, out_width: int, *, seed: int = 0, dtype: torch.dtype = torch.float32,
        facts: GraphFacts | None = None, types: GraphTypes | None = None, ids: Tensor | None = None,
    ) -> nn.Module:  # fmt: skip
        """Build the module; equal seeds give equal weights on every rank. facts: of the graph, for lazy layers.

        types: of a typed graph. ids: not used, since tables of nodes are cut afterwards.
        """
        given: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        kind = type(self).module
        names, is_open = arguments_of(kind)
        if not names and is_open:
            if isinstance(kind, type) and not _takes_names(kind):
                raise unfit(kind, ARGS)
            names = {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (IN[0], OUT[0])}
        given = {name: TRUTH.get(value, value) if name not in names else value for name, value in given.items()}
        widths = ((IN, in_width), (OUT, out_width), (NODES, 1 if facts is None else facts.nodes))
        given |= {name: width for known, width in widths for name in known if name in names}
        if types:
            given = {name: value for name, value in given.items() if name not in IN}
            known = arguments(kind, names, types, IN)
            given |= {name: value for name, value in known.items() if given.get(name) is None}
        given = {name: value for name, value in given.items() if value is not None or name not in NUMBERS}
        fix = f"{self.name} cannot be made; give its options with -m KEY=VALUE"
        if -1 in given.values():
            fix += "; the widths differ by node type, so the width of the input is -1, for lazy layers"
        if facts is not None and not types and asks_for_types(names):
            raise self._for_typed(facts)
        with drawing(seed), own_code(kind, fix=fix):
            model = kind(**given)
        if not isinstance(model, nn.Module) or not callable(getattr(model, "forward", None)):
            raise unfit(kind, f"made a {type(model).__name__}; it has to be a torch.nn.Module")
        if facts is not None and not types and takes_only_types(model):
            raise self._for_typed(facts)
        with drawing(seed), own_code(kind, fix="its lazy layers could not be given their widths"):
            if facts is not None:
                by_type = types is not None and complete(model, types, has_table)
                fill_lazy(model, *two_nodes(facts, 0 if types else in_width, by_type=by_type))
            return model.to(dtype)

    def outline(self, in_width: int, out_width: int, facts: GraphFacts | None = None) -> nn.Module:
        """Build the module only to inspect it. facts: of the graph, if they are known."""
        if facts is not None and facts.types:
            return self.build(in_width, out_width, facts=facts, types=facts.types)
        if not self._asks_for_types():
            return self.build(in_width, out_width)
        try:
            return self.build(in_width, out_width, types=one_type(in_width))
        except InputError:  # its layers depend on the types of its graph, which are not known here
            return nn.Identity()

    def check_types(self, facts: GraphFacts, out_width: int, *, of_pairs: bool) -> None:
        """Refuse a model that does not fit the graph's types. of_pairs: the task reads rows of two types."""
        if not facts.types:
            self._check_one_type(facts, out_width)
            return
        if takes_dicts(self.outline(facts.features, out_width, facts)) and of_pairs:
            raise InputError(
                f"{self.name} returns rows of one type, and link prediction on {facts.name} reads those of two: use a "
                "model of ours, or one over the nodes of all types that takes edge_type (docs/typed.md)"
            )

    def _check_one_type(self, facts: GraphFacts, out_width: int) -> None:
        names, _ = arguments_of(type(self).module)
        for name in NUMBERS:
            if name in names and names[name].default is inspect.Parameter.empty and getattr(self, name) is None:
                raise InputError(
                    f"{facts.name} has one node type and one relation, and {self.name} takes {name}: give it with "
                    f"-m {name}=NUMBER, or give a typed graph (docs/typed.md)"
                )
        if asks_for_types(names) or takes_only_types(self.outline(facts.features, out_width)):
            raise self._for_typed(facts)

    def _for_typed(self, facts: GraphFacts) -> InputError:
        return InputError(
            f"{facts.name} has one node type and one relation, and {self.name} takes dictionaries by type: give a "
            "typed graph (docs/typed.md)"
        )

    def _asks_for_types(self) -> bool:
        """Whether the graph's types decide arguments of the constructor that have no value."""
        names, _ = arguments_of(type(self).module)
        return asks_for_types(names) or any(getattr(self, name, 1) is None for name in NUMBERS)

    def distributed(
        self, model: nn.Module, shard: Shard, strategy: Strategy, *, epochs: int, seed: int, check: bool = True,
        message_memory: str = "auto", about: Mapping[str, Any] = MappingProxyType({}),
    ) -> Distributed:  # fmt: skip
        """The module on this rank's rows. about: the run and its graph, which the self-check depends on."""
        found = distribute(model, shard, strategy, epochs=epochs, seed=seed, check=check, message_memory=message_memory)
        found.passed = PassedChecks(about) if about else None
        return found


def as_model(kind: Any) -> Any:
    """Describe a torch module, or a function that builds one, as a value; return any other class unchanged."""
    is_own = issubclass(kind, nn.Module) if isinstance(kind, type) else callable(kind)
    return spec_of(kind) if is_own else kind


@cache
def spec_of(module: Callable[..., nn.Module], more: tuple[str, ...] = ()) -> type[OwnModel]:
    """The class of values that describe such modules; it has the module's own name.

    more: options that only **kwargs of the constructor takes.
    """
    names, _ = arguments_of(module)
    names |= {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more}
    return described(module, OwnModel, "module", _field, IN + OUT + NODES + TYPES, names)


def arguments_of(kind: Callable[..., nn.Module]) -> tuple[dict[str, inspect.Parameter], bool]:
    """A constructor's arguments by name, and whether it takes further ones.

    *args and **kwargs stand for the arguments of the base class.
    """
    if not isinstance(kind, type):
        inits: list[Any] = [kind]
    else:
        inits = [vars(one)["__init__"] for one in kind.__mro__ if one not in BARE and "__init__" in vars(one)]
    found: dict[str, inspect.Parameter] = {}
    for init in inits:
        own = list(inspect.signature(init).parameters.values())[isinstance(kind, type) :]
        for one in own:
            if one.kind not in GATHERS:
                found.setdefault(one.name, one)
        if not any(one.kind in GATHERS for one in own):
            return found, False
    return found, bool(inits)


def _takes_names(kind: type) -> bool:
    """Whether a constructor has **kwargs."""
    parameters = inspect.signature(kind).parameters.values()
    return any(one.kind is one.VAR_KEYWORD for one in parameters)


def _field(parameter: inspect.Parameter) -> tuple[Any, Any] | None:
    kind, default = _kind(parameter), parameter.default
    if default is parameter.empty and parameter.name in NUMBERS:
        return int | None, field(default=None)
    if default is parameter.empty:
        return kind, field()
    if isinstance(default, PLAIN) or default is None:
        return kind | None if default is None else kind, field(default=default)
    return None


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of an argument: its annotation, or the type of its default; else a number or a text."""
    if parameter.annotation in PLAIN:
        return parameter.annotation
    default = type(parameter.default)
    return float | int if default is float else default if default in PLAIN else int | float | str
