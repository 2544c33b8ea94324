"""What a process of tests says to the one that controls it: results, and no more.

Of each test xdist sends six messages: that it begins and ends, a report of each of its
three phases, and that the next may come. Two of them say something where all went well.
"""

from collections.abc import Mapping
from typing import Any

import pytest

UNSAID = {"logstart", "logfinish"}
INTERACTOR = "WorkerInteractor"
"""Its class, in a module that xdist runs under another name."""


def say_less(config: pytest.Config) -> None:
    """Keep the messages of this process, if it is one of several, to what is needed."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == INTERACTOR:
            plugin.sendevent = _needed_alone(plugin.sendevent)


def _needed_alone(send: Any) -> Any:
    def sendevent(name: str, **content: Any) -> None:
        if name not in UNSAID and not (name == "testreport" and is_plain(**content)):
            send(name, **content)

    return sendevent


def is_plain(data: Mapping[str, Any]) -> bool:
    """Whether a report says only that a test was prepared, or cleaned up after."""
    return data["outcome"] == "passed" and data["when"] != "call"
