"""pcp-stage: what stages compute together is what the whole program computes."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers import pipelines

from pcp.compiler.catalog import pipeline
from pcp.errors import PassError

CASES = [
    (model, f"stages={stages} microbatches={count} tied={tied}", kind)
    for model, tied, counts in (
        ("mlp", "false", (1, 2, 8)),
        ("block", "false", (2, 4)),
        ("cnn", "false", (2,)),
        ("gpt", "true", (1, 4)),
        ("gpt8", "true", (8,)),
        ("llama", "false", (2,)),
    )
    for count in counts
    for stages in (2, 4)
    for kind in ("gpipe", "1f1b", "zb-h1")
]
FAST = {
    ("mlp", "stages=4 microbatches=8 tied=false", "1f1b"),
    ("mlp", "stages=4 microbatches=8 tied=false", "zb-h1"),
    ("cnn", "stages=2 microbatches=2 tied=false", "gpipe"),
    ("gpt", "stages=4 microbatches=4 tied=true", "1f1b"),
}


@pytest.fixture(scope="module")
def elsewhere():
    """A process of its own: the interpreter ends the one it fails in."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [pytest.param(*c, marks=() if c in FAST else pytest.mark.slow) for c in CASES],
)
def test_stages_equal_the_whole(model: str, options: str, kind: str, elsewhere) -> None:
    job = elsewhere.submit(pipelines.error, model, options, kind)
    assert job.result(200) <= 1e-5


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("mlp", "stages=4 microbatches=3", "batch of 8 cannot be cut into 3 equal"),
        ("mlp", "stages=15", "too few for 15 stages"),
        ("gpt", "stages=4", "parameter token is used by two stages"),
        ("mlp", "stages=2 balance=luck", "balance=luck is not one of time, memory"),
        ("mlp", "stages=2 func=man", "no function @man"),
    ],
)
def test_what_cannot_be_staged_is_said(model: str, options: str, says: str) -> None:
    with pytest.raises(PassError, match=says):
        pipeline(f"builtin.module(pcp-stage{{{options}}})").run(pipelines.named(model))
