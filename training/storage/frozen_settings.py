"""Settings that must not change from a run's first line to its last."""

from collections.abc import Mapping
from typing import Any

from pcp.errors import StateMismatch

_NAMED = {
    "data": "data_path",
    "samples_per_epoch": "data_path",
    "parameters": "model_path",
}
"""The keys of an experiment for the constants of a run."""


def check(begin: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Check a run's first line against a shepherd's constants.

    `StateMismatch` names the key of the experiment. Constants that an older pcp did not
    write are not checked.
    """
    for key, value in now.items():
        if _differs(begin.get(key, value), value):
            raise StateMismatch(
                f"{where}: the run was begun with other data or settings "
                f"({_difference(key, begin[key], value)}); resume with the same ones, "
                "or start a new run"
            )


def _differs(old: Any, new: Any) -> bool:
    if isinstance(old, dict):
        return any(old[key] != new[key] for key in old.keys() & new)
    return old != new


def _difference(key: str, old: Any, new: Any) -> str:
    if isinstance(old, dict):
        key = next(k for k in new if k in old and old[k] != new[k])
        return f"{key} was {old[key]!r}, is {new[key]!r}"
    what = f"was {str(old)[:16]}, is {str(new)[:16]}"
    return f"{_NAMED[key]}: what it names is another one: {key} {what}"
