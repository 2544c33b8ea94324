"""Loops over a runtime: state that outlives a step.

`parse` reads an experiment file, `Corpus` is its data as samples in order, `Steps`
makes the steps of a training bundle on one batch after another.
"""

from typing import TYPE_CHECKING

from pcp.door import opened

if TYPE_CHECKING:
    from pcp.training.config.experiment_file import (
        parse,
    )
    from pcp.training.data.corpus import Corpus
    from pcp.training.trainer.step_loop import Steps

__all__ = ["Corpus", "Steps", "parse"]

_HOMES = {
    "Corpus": "pcp.training.data.corpus",
    "Steps": "pcp.training.trainer.step_loop",
    "parse": "pcp.training.config.experiment_file",
}

__getattr__ = opened(__name__, _HOMES)
