"""Names of a run's choices: our short names, `my_file.py:Name`, or `package.module:Name`.

    CODECS = Axis("codec", ("encode", "decode", "nbytes"), {"lowbit": "fullgraph.codec.lowbit:LowBit"})
    codec: Annotated[Codec, CODECS]                      # a field that takes a codec, or its name

    CODECS.make("lowbit", bits="2")                      # from a user's text
    CODECS.read({"name": "lowbit", "bits": 2}, "codec")  # from a file that CODECS.write(codec) wrote

A name stands for a frozen dataclass, whose fields are its options, or for a function on an axis without options.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fullgraph.errors import InputError, nearest, one_line
from fullgraph.own_code import own_code, unfit
from fullgraph.reference import hand_over, has_a_file, load, reference_of
from fullgraph.values import axis_of, built, hints_of, read_option, read_value, tree_of

OWN = "my_file.py:Name or package.module:Name"


class Axis(Mapping[str, Any]):
    """The choices on one axis of a run: a mapping from our short names, which also finds a user's own names."""

    def __init__(
        self, what: str, needs: tuple[str, ...], names: Mapping[str, str], adapter: str = "", *,
        factories: bool = False, handed: bool = False,
    ) -> None:  # fmt: skip
        """adapter: turns another class, such as a plain torch module, into a choice. factories: the adapter also takes
        functions. handed: functions that no file holds are sent to ranks.
        """
        self.what, self.needs, self.names, self.adapter = what, needs, names, adapter
        self.factories, self.handed = factories, handed

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getitem__(self, name: str) -> Any:
        return self.find(name)

    def find(self, name: str, field: str = "") -> Any:
        """Find the class or function of a name; `field` is the user's word for it in errors, by default the axis."""
        reference = self.names.get(name, name)
        if ":" not in reference:
            known = f"known: {', '.join(self.names)}; or name your own: {OWN}"
            raise InputError(
                f"{field or self.what} {one_line(name, 60)!r} is unknown{nearest(name, self.names)}; {known}"
            )
        found = load(reference)
        with own_code(found):
            if self.adapter and not is_dataclass(found) and (isinstance(found, type) or self.factories):
                found = load(self.adapter)(found)
            lacks = [need for need in self.needs if not _has(found, need)]
            frozen = getattr(getattr(found, "__dataclass_params__", None), "frozen", False)
        if lacks or not callable(found):
            raise unfit(found, f"is no {self.what}: it has no {', '.join(lacks) or 'call'}", one_line(name, 100))
        if isinstance(found, type) and (not frozen or "name" in _fields(found)):
            fix = "write @dataclass(frozen=True) above it, and call no field `name`"
            raise unfit(found, f"has to be a frozen dataclass: {fix}", one_line(name, 100))
        return found

    def problem(self, value: Any) -> str | None:
        """The value that this axis expects, in words; None if the given one fits."""
        kept = is_dataclass(value) or inspect.isroutine(value)  # a file can hold it: a value, or a function's name
        good = kept and not isinstance(value, type) and all(hasattr(value, need) for need in self.needs)
        return None if good else f"a {self.what}, or the name of one: {', '.join([*self.names, OWN])}"

    def make(self, name: str, /, **options: Any) -> Any:
        """Build the value of a name; options are texts from a user, or values.

        A field that is itself a named value takes its options too: `codec=lowbit bits=2`. The options of `halo_codec`
        begin with the same word: `halo_bits`.
        """
        found = self.find(name)
        if isinstance(found, type):
            return made(_widened(found, options), options, f"{self.what} {name!r}")
        if options:
            raise InputError(f"{self.what} {name!r} is a function, which has no option {', '.join(options)}")
        return found

    def changed(self, value: Any, /, **options: Any) -> Any:
        """The same value with some options changed, as in `make`."""
        return made(type(value), options, f"{self.what} {self.name_of(value)!r}", value)

    def options(self, name: str) -> dict[str, Any]:
        """The options of a name with their defaults: numbers, texts and names."""
        options_of = _Options({})
        options_of.fill(self.find(name))
        return options_of.known

    def those(self, fit: Callable[[Any], bool]) -> str:
        """The names whose default values fit, for error lines that suggest one."""
        return ", ".join(name for name in self.names if fit(self.make(name)))

    def reads(self, tree: Any) -> bool:
        """Whether `read` accepts the object."""
        kind = tree.func if isinstance(tree, partial) else tree
        return isinstance(tree, str | Mapping) or (bool(self.adapter) and isinstance(kind, type))

    def read(self, tree: Any, where: str) -> Any:
        """Read a value that `write` wrote; a bare name means default options.

        A class that the adapter takes may be given as it is, and so may a `functools.partial` of one.
        """
        if isinstance(tree, type | partial):
            kind, options = (tree.func, tree.keywords) if isinstance(tree, partial) else (tree, {})
            return read_value(self.find(reference_of(kind)), options, f"{where}: {kind.__name__}")
        name = tree.get("name") if isinstance(tree, Mapping) else tree
        if not isinstance(name, str):
            raise InputError(f"{where} has to be the name of a {self.what}, or an object with a name")
        found = self.find(name, where if where.isidentifier() else "")
        if not isinstance(found, type):
            return found
        own = {key: value for key, value in tree.items() if key != "name"} if isinstance(tree, Mapping) else {}
        return read_value(_widened(found, own), own, f"{self.what} {one_line(name, 100)}")

    def write(self, value: Any) -> Any:
        """A value as JSON: its name and its fields; for a function, its name."""
        name = self.name_of(value)
        return {"name": name, **tree_of(value)} if is_dataclass(value) else name

    def name_of(self, value: Any) -> str:
        """The short name, or the reference, of a value's class or of a function."""
        if self.handed and inspect.isfunction(value) and not has_a_file(value):
            return hand_over(value)
        reference = reference_of(value if inspect.isroutine(value) else type(value))
        return next((name for name, known in self.names.items() if known == reference), reference)

    def label(self, value: Any) -> str:
        """The name for people: a file appears without its folder."""
        return self.name_of(value).rpartition("/")[2]


def _widened(kind: type, options: Mapping[str, Any]) -> type:
    """The class with one more field for each option that its constructor takes as **kwargs."""
    widened: type = getattr(kind, "widened", lambda names: kind)(options)
    return widened


def made(kind: type, options: Mapping[str, Any], what: str, base: Any = None) -> Any:
    """Build a value from options, including those of named values in its fields; `base` supplies the rest.

    what: the first words of an error about an option.
    """
    options_of = _Options(options)
    value = options_of.fill(kind, base=base)
    unknown = [key for key in options if key not in options_of.known]
    if unknown:
        told = f"{what} has no option {one_line(', '.join(unknown), 60)}{nearest(unknown[0], options_of.known)}"
        raise InputError(f"{told}; known: {listed(options_of.known)}")
    return value


class _Options:
    """Reads a value's fields from options, and collects all known options with their defaults."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.known: dict[str, Any] = {}

    def fill(self, kind: type, prefix: str = "", base: Any = None) -> Any:
        """Build a value of `kind` from the options; missing ones come from `base`, or from the class's defaults."""
        filled: dict[str, Any] = {}
        for field in (field for field in fields(kind) if field.name in hints_of(kind)):
            key, hint = prefix + field.name, hints_of(kind)[field.name]
            default = _default(field) if base is None else getattr(base, field.name)
            self.known.setdefault(key, _shown(hint, default))
            value = self.given.get(key, default)
            axis = axis_of(hint)
            head = field.name.rpartition("_")[0]
            below = f"{prefix}{head}_" if head else prefix
            if axis is not None and is_dataclass(value):
                filled[field.name] = self.fill(type(value), below, value)
            elif axis is not None and isinstance(value, str) and not _reads(hint, value):
                found = axis.find(value, key)
                filled[field.name] = self.fill(found, below) if isinstance(found, type) else found
            elif key in self.given:
                filled[field.name] = read_option(hint, key, value)
        if base is None:
            return built(kind, filled, kind.__name__)
        with own_code(kind):
            return replace(base, **filled)


def _reads(hint: Any, text: str) -> bool:
    """Whether a text is a plain value of the field, and not a name."""
    try:
        read_option(hint, "", text)
    except InputError:
        return False
    return True


def _default(field: "Field[Any]") -> Any:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


def _shown(hint: Any, value: Any) -> Any:
    """A default, written as a user would type it."""
    axis = axis_of(hint)
    if axis is not None and (is_dataclass(value) or inspect.isroutine(value)):
        return axis.label(value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def listed(options: Mapping[str, Any]) -> str:
    """Options and their defaults, on one line."""
    texts = {True: "true", False: "false", None: ""}
    pairs = (
        (key, texts[value] if value is None or isinstance(value, bool) else value) for key, value in options.items()
    )
    return ", ".join(f"{key}={value}" for key, value in pairs) or "none"


def _has(found: Any, need: str) -> bool:
    """Whether a function, or the instances of a class, have an attribute. Calling a class itself does not count."""
    if need == "__call__" and isinstance(found, type):
        return any(need in vars(kind) for kind in found.__mro__)
    return hasattr(found, need) or need in _fields(found)


def _fields(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def pairs_of(pairs: list[str], option: str = "-o") -> dict[str, str]:
    """Parse a repeated KEY=VALUE option; `option` is its name, for errors."""
    bad = [pair for pair in pairs if "=" not in pair]
    if bad:
        raise InputError(f"{option} {one_line(bad[0], 60)}: write it as KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


T = TypeVar("T")


def parse_options(kind: str, cls: type[T], text: str) -> T:
    """Return `cls(**options)` for a value with int, float and bool fields; refuse unknown or malformed options."""
    known = {field.name: type(field.default) for field in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in known:
            problem = f"{kind}: does not know '{one_line(key, 40)}'{nearest(key, known)}"
            raise InputError(f"{problem}: choose from {', '.join(known)}")
        if key in values:
            raise InputError(f"{kind}: {key} is given twice: give it once")
        if not equals:
            raise InputError(f"{kind}: {key} has no value: write {key}=VALUE")
        values[key] = read_option(known[key], f"{kind}: {key}", value)
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{kind}: {error}") from None
