"""`benchmarks/collectives.py --undisturbed` without the right to be so."""

import os
import sys

import pytest
from helpers.repository.sources import ROOT


def test_what_is_needed_is_said(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import collectives

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    monkeypatch.setattr(sys, "argv", ["collectives.py", "--undisturbed"])
    with pytest.raises(SystemExit, match="--undisturbed needs Linux, and root or"):
        collectives.main()
