"""Named sets of hyperparameters, written `kind{key=value,key=value}`.

A spec is a frozen dataclass. `str(spec)` leaves defaults out and `parse` reads it
back, so that one text serves the command line, the pipeline string and the
attribute on a module. No MLIR here: `import pcp; pcp.AdamW()` stays light.
"""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import Field, dataclass, fields
from importlib import import_module
from struct import pack, unpack
from typing import Any, ClassVar

from pcp.errors import ConfigError, nearest

Hyper = float | int | bool | str


@dataclass(frozen=True)
class Spec:
    """Base of all specs: `kind` is its name in text, its fields are the keys."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Numbers are finite in f32, or `ConfigError`; a subclass checks more."""
        for name, value in self.hyper().items():
            if isinstance(value, float):
                self._check_number(name, value)

    def _check_number(self, name: str, value: float) -> None:
        """Programs compute in f32: what is 0, 1 or infinite there alone is refused."""
        if not math.isfinite(value):
            raise ConfigError(f"{self.kind}: {name}={value} is not finite")
        (short,) = unpack("f", pack("f", value))
        changed = math.isinf(short) or short == 0 != value
        if changed or abs(value) < 1 == abs(short):
            raise ConfigError(f"{self.kind}: {name}={value} is {short:g} in f32")

    def hyper(self) -> dict[str, Hyper]:
        """Every hyperparameter by name, defaults included."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        """As `parse` reads it, defaults left out."""
        changed = [
            f"{f.name}={_show(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.kind + (f"{{{','.join(changed)}}}" if changed else "")

    def require(self, condition: bool, key: str, meaning: str) -> None:
        """Raise `ConfigError` unless `condition`; `meaning` says what is allowed."""
        if not condition:
            value = _show(getattr(self, key))
            raise ConfigError(f"{self.kind}: {key}={value}: {meaning}")


def parse(text: str, kinds: Mapping[str, type[Spec]], what: str) -> Spec:
    """Read `kind` or `kind{key=value,...}`; `what` names the family in errors."""
    name, brace, rest = text.strip().partition("{")
    if (cls := kinds.get(name.strip())) is None:
        known = ", ".join(kinds)
        raise ConfigError(
            f"no {what} {name.strip()!r} (known: {known}).{nearest(name, kinds)}"
        )
    if bool(brace) != rest.endswith("}"):
        raise ConfigError(f"{what} {text!r}: write {name}{{key=value,...}}")
    return cls(**_values(cls, rest.removesuffix("}")))


#: The rules of kinds that an extension brings.
_registered: dict[type[Spec], Any] = {}


def register(
    kinds: MutableMapping[str, type[Spec]], cls: type[Spec], rule: object
) -> None:
    """Add a kind from outside, with what builds its programs; again does nothing.

    `ConfigError` for a name that another class has.
    """
    if not cls.kind:
        raise ConfigError(f"{cls.__name__}: a spec needs a `kind`, its name in text")
    if kinds.setdefault(cls.kind, cls) is not cls:
        raise ConfigError(f"{cls.kind} is already a name, of {kinds[cls.kind]}")
    _registered[cls] = rule


def rule_of(spec: Spec, package: str) -> Any:
    """What builds a spec's programs: registered, or `RULE` in the file of its kind."""
    if type(spec) in _registered:
        return _registered[type(spec)]
    return import_module(f"{package}.{spec.kind}").RULE


def split(text: str) -> tuple[str, str]:
    """`kind` and what stands between its braces."""
    name, _, rest = text.strip().partition("{")
    return name.strip(), rest.removesuffix("}").strip()


def keys(inside: str) -> set[str]:
    """The keys that the text between a kind's braces gives."""
    items = (item.partition("=")[0].strip() for item in inside.split(","))
    return {item.replace("-", "_") for item in items if item}


def filled(
    text: str, kinds: Mapping[str, type[Spec]], what: str, values: Mapping[str, object]
) -> str:
    """`text` with `values` for the keys that its kind has and it does not give."""
    own = parse(text, kinds, what)
    name, inside = split(text)
    known = {f.name for f in fields(own)}
    given = keys(inside)
    more = [f"{k}={v}" for k, v in values.items() if k in known and k not in given]
    items = ",".join([*([inside] if inside else []), *more])
    return f"{name}{{{items}}}" if items else name


def _values(cls: type[Spec], text: str) -> dict[str, Hyper]:
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Hyper] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        key = key.replace("-", "_")
        if key not in known:
            raise ConfigError(
                f"{cls.kind}: unknown key {key!r} (known: {', '.join(known)})."
                + nearest(key, known)
            )
        if key in values:
            raise ConfigError(f"{cls.kind}: {key} is given twice")
        if not equals:
            raise ConfigError(f"{cls.kind}: {key} needs a value: {key}=...")
        values[key] = _read(cls, known[key], value)
    return values


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _read(cls: type[Spec], field: "Field[Any]", text: str) -> Hyper:
    kind: Any = type(field.default)
    try:
        return _BOOLEANS[text] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{cls.kind}: {field.name}={text!r} is not a {kind.__name__}"
        ) from error


def _show(value: Hyper) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
