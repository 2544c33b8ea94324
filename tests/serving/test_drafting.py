"""Speculative decoding: the tokens without drafts, whatever is drafted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.serving.closed_form import ClosedForm
from helpers.serving.small_llama import save

from pcp.serving.drafting import Drafted, DraftModel, Drafts, PromptLookup
from pcp.serving.interface import Chunk, Sampled, Sampling, Step, Tick

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.models.decoders import (  # noqa: E402  they import both
    CONTEXT,
    VOCABULARY,
    Request,
    compiled,
    generated,
    run,
    saved,
)

from pcp.serving.engine import load  # noqa: E402
from pcp.tools.serving.decoder_bundle import compile_folder  # noqa: E402

PHASES = ("prefill:2,32,2x32", "decode:1,2,1x4,2x4")
SEEDED = Sampling(temperature=1.0, top_k=40, seed=99)
PENALISED = Sampling(repetition_penalty=1.3, presence_penalty=0.5, top_logprobs=2)


class Oracle:
    """Knows the answers, and is right so often."""

    def __init__(self, answers: Sequence[Sequence[int]], share: float) -> None:
        self._answers, self._share = answers, share
        self._random = np.random.default_rng(0)
        self.closed = False

    def draft(self, tokens: Mapping[int, Sequence[int]], count: int) -> Drafted:
        """What follows in the answer that begins so."""
        return {
            slot: [self._maybe(t) for t in self._rest(list(own))[:count]]
            for slot, own in tokens.items()
        }

    def _rest(self, own: list[int]) -> list[int]:
        whole = next(a for a in self._answers if list(a[: len(own)]) == own)
        return list(whole[len(own) :])

    def _maybe(self, token: int) -> int:
        return token if self._random.random() < self._share else (token + 1) % 50

    def describe(self) -> str:
        """Its name."""
        return "oracle"

    def close(self) -> None:
        """Note it."""
        self.closed = True


def requests() -> list[Request]:
    """A greedy one, a seeded one, and one with penalties, of unlike lengths."""
    random = np.random.default_rng(3)
    drawn = [random.integers(0, VOCABULARY, n).tolist() for n in (5, 17, 40)]
    sampling = (Sampling(), SEEDED, PENALISED)
    return [
        Request(n, prompt, CONTEXT - len(prompt) - 3 * n, n, each)
        for n, (prompt, each) in enumerate(zip(drawn, sampling, strict=True))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's."""
    folder = tmp_path_factory.mktemp("model")
    saved("llama", folder)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[int]]:
    """The answers without drafts, up to the end of the context."""
    engine = load(compiled(folder), folder, device="local-sync")
    found = run(engine, *requests())
    engine.close()
    return found


@pytest.mark.parametrize(
    ("share", "sampler"),
    [
        *((share, False) for share in (0.0, 0.5, 0.8, 1.0)),
        pytest.param(0.8, True, marks=pytest.mark.slow),  # the program draws
    ],
)
def test_answers_are_those_without_drafts(
    folder: Path, plain: list[list[int]], share: float, sampler: bool
) -> None:
    asked = requests()
    answers = [[*r.tokens, *made] for r, made in zip(asked, plain, strict=True)]
    oracle = Oracle(answers, share)
    bundle = compiled(folder, PHASES, sampler=sampler)
    engine = load(bundle, folder, slots=3, device="local-sync", drafter=oracle)
    assert run(engine, *asked) == plain
    said = engine.describe()["drafts"]
    assert said["drafter"] == "oracle"
    assert said["drafted"] > 100
    assert (said["right"] == said["drafted"]) == (share == 1)
    assert (said["right"] > 0) == (share > 0)
    engine.close()
    assert oracle.closed


@pytest.mark.parametrize("kind", ["the same", "another", "lookup"])
def test_drafters_that_users_have(
    folder: Path, plain: list[list[int]], kind: str, tmp_path: Path
) -> None:
    """A model that is always right, one that hardly is, and the newest tokens."""
    bundle = compiled(folder, PHASES)
    drafter = PromptLookup()
    if kind != "lookup":
        other = folder
        if kind == "another":
            saved("qwen3", other := tmp_path)
        phases = PHASES if other == folder else ("prefill:2,32", "decode:1,2")
        own = load(compiled(other, phases), other, slots=3, device="local-sync")
        drafter = DraftModel(own)
    engine = load(bundle, folder, slots=3, device="local-sync", drafter=drafter)
    assert run(engine, *requests()) == plain
    said = engine.describe()["drafts"]
    if kind == "the same":
        greedy = Request(9, [5, 6, 7], 40, 0)
        run(engine, greedy)
        now = engine.describe()["drafts"]
        right = now["right"] - said["right"]
        # Less than all: the last call drafts behind the end.
        assert right >= now["drafted"] - said["drafted"] - 3
    engine.close()


def test_transformers_says_the_same(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = [4, 8, 15, 16, 23, 42]
    engine = load(
        compiled(folder, PHASES),
        folder,
        slots=2,
        device="local-sync",
        drafter=PromptLookup(),
    )
    assert run(engine, Request(0, prompt, 60, 0)) == [generated(model, prompt, 60)]
    engine.close()


@pytest.mark.slow  # two thousand passes of a model
def test_a_thousand_positions(tmp_path: Path) -> None:
    """Greedy and seeded, side by side, with drafts of which four in five are right."""
    save(tmp_path, 1100)
    bundle = compile_folder(tmp_path, PHASES, 1088)

    def asked() -> list[Request]:
        return [
            Request(n, [5, 6, 7 + n], 1000, n, each, chunk=32)
            for n, each in enumerate((Sampling(), SEEDED))
        ]

    engine = load(bundle, tmp_path, slots=2, device="local-sync")
    plain = run(engine, *asked())
    engine.close()
    answers = [[*r.tokens, *m] for r, m in zip(asked(), plain, strict=True)]
    oracle = Oracle(answers, 0.8)
    engine = load(bundle, tmp_path, slots=2, device="local-sync", drafter=oracle)
    assert run(engine, *asked()) == plain
    assert engine.describe()["drafts"]["right"] > 1000
    engine.close()


# --- drafters alone ---


@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1]),
        ([7, 1, 5, 8, 1], [5, 8, 1]),
        ([1, 1, 1, 1, 1], [1]),
        ([1, 2, 3], []),
        ([4], []),
    ],
)
def test_lookup_copies_what_followed(tokens: list[int], drafted: list[int]) -> None:
    assert PromptLookup().draft({3: tokens}, 3) == {3: drafted}


def test_a_draft_models_cache_follows_its_slots() -> None:
    """The closed form refuses a piece that contradicts its cache."""
    draft, truth = ClosedForm(slots=2), ClosedForm(slots=2)
    model = DraftModel(draft)
    random = np.random.default_rng(0)
    whole = [list(range(1, 30)), [3, 4]]
    for _ in range(9):
        drafted = model.draft(dict(enumerate(whole)), 3)
        for slot, tokens in enumerate(whole):
            rest = list(tokens)
            for token in drafted[slot]:
                assert token == greedy(truth, slot, rest)
                rest.append(token)
            keep = int(random.integers(0, len(drafted[slot]) + 1))
            whole[slot] = [*tokens, *drafted[slot][:keep], int(random.integers(97))]
            whole[slot] = whole[slot][: draft.context]


def greedy(engine: ClosedForm, slot: int, tokens: Sequence[int]) -> int:
    """The token behind these."""
    found: list[Sampled] = []
    for start in range(0, len(tokens), engine.chunk):
        piece = tuple(tokens[start : start + engine.chunk])
        last = start + len(piece) == len(tokens)
        chunk = Chunk(slot, piece, start, last, 0, Sampling(), adopt=start > 0)
        found = engine.tick(Tick((chunk,)))
    return found[0].token


def test_no_drafts_behind_a_mask_and_the_contexts_end() -> None:
    drafts = Drafts(PromptLookup(), 4, 10)
    held = {0: [1, 2] * 4, 1: [1, 2] * 4, 2: [1, 2] * 5}
    steps = (
        Step(0, 1, 8, 0, Sampling(), mask=b"\xff"),
        Step(1, 1, 8, 1, Sampling()),
        Step(2, 1, 9, 2, Sampling()),
    )
    drafted = drafts.of(steps, held)
    assert drafted == {1: [2]}
    drafts.judge(drafted, {1: [Sampled(1, 2, 0.0), Sampled(1, 5, 0.0)]})
    assert drafts.describe() == {"drafter": "lookup", "drafted": 1, "right": 1}
