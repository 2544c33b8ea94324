"""The engine of one device: requests side by side, and ticks that it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcp.errors import BundleError, UsageError
from pcp.runtime.program.executor import DeviceArray
from pcp.serving.interface import Chunk, Sampling, Step, Tick
from pcp.serving.sampling import NOT_FINITE

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.models.decoders import (  # noqa: E402  they import both
    CONTEXT,
    GREEDY,
    VOCABULARY,
    Request,
    advance,
    compiled,
    run,
    saved,
)

from pcp.serving.cached_model import CachedModel, Call  # noqa: E402
from pcp.serving.engine import OneDevice, SlotEngine  # noqa: E402
from pcp.serving.engine import load as engine_of  # noqa: E402

SEEDED = Sampling(temperature=1.0, top_p=0.95, seed=(5 << 40) + 3, top_logprobs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    found = tmp_path_factory.mktemp("llama")
    saved("llama", found)
    return found


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[SlotEngine]:
    """One with five slots, and functions for one and four; it draws tokens, or not."""
    bundle = compiled(folder, sampler=request.param)
    made = engine_of(bundle, folder, slots=5, device="local-sync")
    yield made
    made.close()


def _model(engine: SlotEngine) -> CachedModel:
    assert isinstance(engine._executor, OneDevice)
    return engine._executor.model


def _prompt(number: int) -> list[int]:
    return (
        np.random.default_rng(number).integers(0, VOCABULARY, 3 + 5 * number).tolist()
    )


def _request(number: int, slot: int) -> Request:
    """Greedy, drawn, and drawn with penalties."""
    bias = {5: 1.5, 90: -100.0}
    other = replace(SEEDED, top_logprobs=0, repetition_penalty=1.3, logit_bias=bias)
    found = (GREEDY, SEEDED, other, SEEDED)[number % 4]
    sampling = replace(found, seed=found.seed + number)
    return Request(number, _prompt(number), 20, slot, sampling, chunk=1 + 3 * number)


def test_staggered_requests_are_as_alone(engine: SlotEngine) -> None:
    """Eight over five slots: each starts when one is free, in another place."""
    alone = [run(engine, _request(n, slot=0))[0] for n in range(8)]
    assert len({tuple(tokens) for tokens in alone}) == 8
    waiting, active, done = list(range(8)), dict[int, Request](), dict[int, list[int]]()
    for tick in range(400):
        free = [s for s in range(engine.slots) if s not in active]
        if waiting and free and tick % 3 == 0:
            slot = free[tick % len(free)]
            active[slot] = _request(waiting.pop(0), slot)
        if active:
            advance(engine, [*active.values()])
        for slot, request in list(active.items()):
            if request.done:
                done[request.number] = active.pop(slot).made
    assert [done[n] for n in range(8)] == alone


def test_a_request_goes_on_where_its_tokens_are_put_again(engine: SlotEngine) -> None:
    """What a lost cache and a preemption come to: the tokens so far, as chunks."""
    whole = run(engine, _request(4, slot=0))[0]
    first = _request(4, slot=1)
    for _ in range(9):
        advance(engine, [first])
    engine.recover()
    again = _request(4, slot=3)
    again.tokens = list(first.tokens)
    run(engine, again)
    assert again.made == whole
    assert 0 < len(first.made) < len(whole)


def test_a_request_adopts_the_beginning_of_an_earlier_one(engine: SlotEngine) -> None:
    """What the cache has of a prompt is not computed again."""
    wanted = run(engine, _request(5, slot=1))[0]
    prompt = _prompt(5)
    run(engine, Request(8, [*prompt[:20], 1, 2, 3], 6, 0, GREEDY, chunk=7))
    sampling = _request(5, slot=0).sampling
    rest = Chunk(0, tuple(prompt[20:]), 20, True, 9, sampling, adopt=True)
    found = engine.tick(Tick((rest,)))
    made = [found[0].token]
    while len(made) < len(wanted):
        position = len(prompt) + len(made) - 1
        step = Step(0, made[-1], position, 9, sampling)
        made.append(engine.tick(Tick(steps=(step,)))[0].token)
    assert made == wanted


def test_a_chunk_at_the_end_of_the_context(engine: SlotEngine) -> None:
    """One too short for its function there is written from further in front."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT - 1).tolist()
    first, second = (
        Request(n, tokens, 2, n, chunk=chunk) for n, chunk in enumerate((1, 23))
    )
    run(engine, first)
    run(engine, second)
    assert first.made == second.made
    with pytest.raises(UsageError, match="position 96 of a context of 96"):
        engine.tick(Tick(steps=(Step(0, 5, CONTEXT, 0, GREEDY),)))


def test_log_probabilities_are_the_models(engine: SlotEngine, folder: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = _prompt(3)
    (found,) = engine.tick(Tick((Chunk(2, tuple(prompt), 0, True, 9, SEEDED),)))
    with torch.no_grad():
        wanted = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
    assert found.logprob == pytest.approx(wanted[found.token].item(), abs=1e-4)
    values, tokens = torch.topk(wanted, 2)
    assert [t for t, _ in found.top] == tokens.tolist()
    assert [v for _, v in found.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_a_mask_allows_tokens(engine: SlotEngine) -> None:
    mask = bytearray(-(-VOCABULARY // 8))
    mask[7 // 8] |= 1 << 7
    prompt = tuple(_prompt(2))
    for sampling in (GREEDY, SEEDED):
        (found,) = engine.tick(
            Tick((Chunk(0, prompt, 0, True, 1, sampling, bytes(mask)),))
        )
        assert found.token == 7


def test_numbers_that_are_none_end_with_their_request(engine: SlotEngine) -> None:
    """And the slot is clean for the next one."""
    wanted = run(engine, _request(3, slot=0))[0]
    model = _model(engine)
    model.caches[0] = {
        name: model.program.to_device(np.full(a.shape, np.nan, np.float32))
        for name, a in model.caches[0].items()
    }
    slot = engine._slots.slots[0]
    step = Step(0, 1, len(slot.tokens), slot.request, GREEDY)
    (found,) = engine.tick(Tick(steps=(step,)))
    assert found.token == NOT_FINITE
    assert run(engine, _request(3, slot=0))[0] == wanted


CHUNK = Chunk(0, (1, 2), 0, False, 4, GREEDY)


@pytest.mark.parametrize(
    ("tick", "message"),
    [
        (Tick((CHUNK, CHUNK)), "slot 0 is twice"),
        (Tick((replace(CHUNK, slot=5),)), "no slot 5; there are 5"),
        (Tick((replace(CHUNK, tokens=()),)), "a chunk of 0 tokens; it has 1 to 32"),
        (Tick((replace(CHUNK, tokens=(1,) * 33),)), "a chunk of 33 tokens"),
        (Tick((replace(CHUNK, tokens=(101,)),)), "there is no token 101"),
        (Tick((replace(CHUNK, start=3),)), "position 3, and the slot holds 2"),
        (Tick((replace(CHUNK, start=1, request=5),)), "the slot is of request 4"),
        (Tick(steps=(Step(0, 1, 0, 4, GREEDY),)), "position 0"),
        (Tick(steps=(Step(1, 1, 1, 4, GREEDY),)), "the slot is of request -1"),
        (Tick((replace(CHUNK, sampling=Sampling(top_p=0)),)), "top_p=0"),
        (Tick((replace(CHUNK, sampling=Sampling(seed=-1)),)), "seed=-1"),
        (Tick((replace(CHUNK, sampling=Sampling(logit_bias={101: 1})),)), "token 101"),
    ],
)
def test_a_tick_that_contradicts_the_slots_changes_nothing(
    tick: Tick, message: str, engine: SlotEngine
) -> None:
    assert engine.tick(Tick((CHUNK,))) == []
    with pytest.raises(UsageError, match=message):
        engine.tick(tick)
    (found,) = engine.tick(Tick(steps=(Step(0, 3, 2, 4, GREEDY),)))
    whole = Chunk(1, (1, 2, 3), 0, True, 7, GREEDY)
    assert found.token == engine.tick(Tick((whole,)))[0].token


def test_a_bundle_of_something_else_is_refused(folder: Path) -> None:
    other = compiled(folder)
    named = {"main": other.manifest.functions["decode_1_96"]}
    manifest = other.manifest.model_copy(update={"functions": named})
    with pytest.raises(BundleError, match="no functions prefill"):
        engine_of(replace(other, manifest=manifest), folder)


def test_an_engine_says_what_it_is(engine: SlotEngine) -> None:
    said = engine.describe()
    assert (engine.context, engine.vocabulary, engine.chunk) == (96, VOCABULARY, 32)
    assert said["cache_bytes"] == 5 * 2 * 2 * 2 * 96 * 16 * 4
    assert said["weight_bytes"] == 4 * sum(
        np.prod(s.shape)
        for s in _model(engine).program.manifest.function("decode_1_96").inputs
        if s.role == "frozen"
    )


@pytest.mark.slow  # compiles functions of eight slots
@pytest.mark.timeout(900)
def test_eight_prompts_in_one_call_are_as_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unlike lengths, greedy and drawn: one call of the program for all of them."""
    phases, slots = ("prefill:16,8x16", "decode:1,8"), range(8)
    wide = engine_of(compiled(folder, phases), folder, slots=8, device="local-sync")
    sampling = [(GREEDY, SEEDED)[slot % 2] for slot in slots]
    prompts = [_prompt(slot)[: 2 * slot + 2] for slot in slots]
    assert len({len(prompt) for prompt in prompts}) == 8
    chunks = tuple(
        Chunk(slot, tuple(prompts[slot]), 0, True, slot, sampling[slot])
        for slot in slots
    )
    calls: list[str] = []
    model = _model(wide)
    whole = model.run

    def counted(call: Call) -> DeviceArray | None:
        calls.append(call.phase.name)
        return whole(call)

    monkeypatch.setattr(model, "run", counted)
    found = [[sampled.token] for sampled in wide.tick(Tick(chunks))]
    assert calls == [f"prefill_8x16_{CONTEXT}"]
    for turn in range(12):
        steps = tuple(
            Step(
                slot,
                found[slot][-1],
                len(prompts[slot]) + turn,
                slot,
                sampling[slot],
            )
            for slot in slots
        )
        for slot, sampled in zip(slots, wide.tick(Tick(steps=steps)), strict=True):
            found[slot].append(sampled.token)
    wide.close()
    alone = engine_of(compiled(folder), folder, slots=5, device="local-sync")
    for slot in slots:
        request = Request(slot, prompts[slot], 13, 0, sampling[slot])
        assert run(alone, request) == [found[slot]]
    alone.close()
