"""One optimizer for all parameters but those whose names match a pattern.

    adamw{lr=6e-4};*.bias={weight_decay=0};*emb*=sgd{lr=0.1}

The text of the optimizer, then for each group a shell pattern and what is other there:
options of the same optimizer, or another one, which then has the learning rate,
schedule and decay of the first where it does not say its own. The first pattern that
matches counts. Clipping is by the norm of all gradients together, and so is not a
group's.

Muon routes by itself: matrices that no pattern of its `others` names are its own, all
other parameters get AdamW.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from pcp.errors import ConfigError
from pcp.passes.core import spec as specs
from pcp.passes.training.optimizers.spec import AdamW, Imported, Muon, Optimizer
from pcp.passes.training.optimizers.spec import parse as one


@dataclass(frozen=True)
class Groups:
    """The optimizer of most parameters, and those of the groups by pattern."""

    default: Optimizer
    others: tuple[tuple[str, Optimizer], ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """That of most parameters."""
        return self.default.kind

    def hyper(self) -> dict[str, specs.Hyper]:
        """Hyperparameters of most parameters, and the groups as text."""
        groups = {"groups": ";".join(self.texts)} if self.texts else {}
        return self.default.hyper() | groups

    def __str__(self) -> str:
        """As `parse` reads it."""
        return ";".join([str(self.default), *self.texts])

    def of(self, name: str, rank: int) -> Optimizer:
        """The optimizer of one parameter."""
        found = (spec for pattern, spec in self.others if fnmatchcase(name, pattern))
        return routed(next(found, self.default), name, rank)

    def idle(self, names: Sequence[str]) -> list[str]:
        """The patterns that match no name."""
        return [
            pattern
            for pattern, _ in self.others
            if not any(fnmatchcase(name, pattern) for name in names)
        ]


def routed(spec: Optimizer, name: str, rank: int) -> Optimizer:
    """Muon for hidden matrices, AdamW for what else it was to train."""
    if not isinstance(spec, Muon):
        return spec
    named = any(fnmatchcase(name.lower(), p) for p in spec.others.split("|") if p)
    if rank >= 2 and not named:
        return spec
    shared: dict[str, Any] = {f.name: getattr(spec, f.name) for f in fields(Optimizer)}
    floor = spec.min_lr * spec.adam_lr / spec.lr if spec.lr else 0.0
    shared |= {"lr": spec.adam_lr, "min_lr": floor}
    return AdamW(
        **shared,
        beta1=spec.adam_beta1,
        beta2=spec.adam_beta2,
    )


def parse(text: str) -> Groups:
    """Read an optimizer with its groups; `ConfigError` says what is wrong in it."""
    first, *rest = (part.strip() for part in text.split(";"))
    default = one(first)
    if isinstance(default, Imported) and any(rest):
        raise ConfigError(
            f"optimizer {default.kind} is a function of all parameters together; give "
            "it groups of its own, as by optax.multi_transform"
        )
    pairs = [_group(item, default) for item in rest if item]
    return Groups(default, tuple(pairs), tuple(item for item in rest if item))


def _group(item: str, default: Optimizer) -> tuple[str, Optimizer]:
    pattern, equals, what = (part.strip() for part in item.partition("="))
    if not equals or not pattern or not what:
        raise ConfigError(
            f"optimizer group {item!r}: write PATTERN={{key=value}} or "
            "PATTERN=kind{key=value}"
        )
    kind, inside = specs.split(what)
    same = not kind or kind == default.kind
    own = one(f"{kind or default.kind}{{{inside}}}")
    given = specs.keys(inside)
    if "clip_norm" in given:
        raise ConfigError(
            f"optimizer group {pattern!r}: clip_norm bounds all gradients together; "
            f"give it to the optimizer: {default.kind}{{clip_norm=...}}"
        )
    inherited = fields(default) if same else fields(Optimizer)
    values = {
        f.name: getattr(default, f.name) for f in inherited if f.name not in given
    }
    return pattern, replace(own, **values)


def text(base: str, groups: Sequence[Mapping[str, object]]) -> str:
    """`base` with groups as an experiment lists them: `match`, and what is other."""
    return ";".join([base, *(_written(dict(group)) for group in groups)])


def _written(group: dict[str, object]) -> str:
    pattern, kind = group.pop("match", None), group.pop("optimizer", "")
    if not pattern:
        raise ConfigError('parameter_groups: each needs "match", a pattern of names')
    values = ",".join(f"{_NAMES.get(k, k)}={_value(v)}" for k, v in group.items())
    return f"{pattern}={kind}{{{values}}}"


_NAMES = {"learning_rate": "lr", "epsilon": "eps", "inner_momentum": "momentum"}
"""Keys of an experiment that are called otherwise in a spec."""


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
