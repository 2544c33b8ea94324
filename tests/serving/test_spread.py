"""A model over ranks: the tokens of one device, also after a rank was killed."""

import io
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcp.bundle import Bundle
from pcp.errors import ConfigError, RuntimeFault, StateMismatch, UsageError
from pcp.mesh import Mesh
from pcp.serving import engine as engine_module
from pcp.serving import weights
from pcp.serving.interface import EngineLost, Sampling, Tick
from pcp.tools.serving import serve_rank, shard
from pcp.tools.serving.serving_mesh import parse
from pcp.training.storage import safetensors_io

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.models.decoders import (  # noqa: E402  they import both
    CONTEXT,
    GREEDY,
    VOCABULARY,
    Request,
    advance,
    compiled,
    generated,
    of_folder,
    run,
    saved,
)

from pcp.serving.engine import SlotEngine  # noqa: E402
from pcp.serving.engine import load as engine_of  # noqa: E402
from pcp.serving.spread import Spread  # noqa: E402
from pcp.tools.serving.decoder_bundle import compile_folder  # noqa: E402
from pcp.tools.serving.decoder_engine import (  # noqa: E402
    of_bundle,
    phases,
    spread_engine,
    start_rank,
)

SLOTS, PHASES = 3, ("prefill:16", "decode:1,2")
SEEDED = Sampling(temperature=1.0, top_k=40, seed=99)
PENALISED = replace(
    SEEDED,
    top_k=0,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logit_bias={7: 2.0, 50: -3.0, 99: 1.0},
    top_logprobs=3,
)
SLOW = pytest.mark.slow
SAMPLED = ("llama-even", "llama-tied")
"""Those whose programs draw tokens: with a head that is cut, and a whole one."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tiny models, as tests ask for them."""
    return {"": tmp_path_factory.mktemp("models")}


def _folder(folders: dict[str, Path], name: str) -> Path:
    if name not in folders:
        folders[name] = folders[""] / name
        saved(name, folders[name], "bfloat16")
    return folders[name]


@contextmanager
def _spread(bundle: Bundle, folder: Path, spares: int = 0) -> Iterator[SlotEngine]:
    engine = spread_engine(bundle, folder, slots=SLOTS, spares=spares)
    try:
        yield engine
    finally:
        engine.close()
        assert not any(r["alive"] for r in engine.describe()["ranks"][1:])


def _requests(top_k: int = 40) -> list[Request]:
    prompts = [
        np.random.default_rng(n).integers(0, VOCABULARY, 5 + 9 * n).tolist()
        for n in range(SLOTS)
    ]
    sampling = (GREEDY, replace(SEEDED, top_k=top_k), PENALISED)
    return [
        Request(n, prompts[n], 24, n, sampling[n], chunk=(16, 7, 1)[n])
        for n in range(SLOTS)
    ]


def _ticks(engine: SlotEngine, requests: list[Request]) -> None:
    """A few: a rank that was killed is noticed in the first or the second."""
    for _ in range(5):
        advance(engine, requests)


def _alone(folder: Path, count: int = SLOTS, top_k: int = 40) -> list[list[int]]:
    """The tokens of one device, each of so many requests by itself."""
    bundle = compiled(folder, PHASES)
    engine = engine_of(bundle, folder, slots=SLOTS, device="local-sync")
    found = [run(engine, request)[0] for request in _requests(top_k)[:count]]
    engine.close()
    return found


@pytest.mark.parametrize(
    ("name", "ranks", "stages"),
    [
        ("llama", 2, 1),
        ("llama", 1, 2),
        pytest.param("phi", 3, 1, marks=SLOW),  # four heads for three
        pytest.param("llama-tied", 4, 1, marks=SLOW),  # one key, replicated
        pytest.param("gemma3", 2, 1, marks=SLOW),
        pytest.param("phi3", 2, 1, marks=SLOW),  # fused weights
        pytest.param("llama-even", 2, 1, marks=SLOW),  # each rank draws of its part
        pytest.param("llama-even", 4, 1, marks=SLOW),
        pytest.param("llama", 2, 2, marks=SLOW),
        pytest.param("llama-tied", 1, 2, marks=SLOW),  # the table on two stages
        pytest.param("gemma3", 2, 2, marks=SLOW),
        pytest.param("phi", 3, 2, marks=SLOW),
        pytest.param("qwen3-moe", 2, 1, marks=SLOW),
        pytest.param("mixtral", 2, 2, marks=SLOW),
    ],
)
def test_ranks_make_the_tokens_of_one_device(
    name: str,
    ranks: int,
    stages: int,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Side by side; and again when a rank was killed in the middle.

    One device's are those of transformers. Where each rank draws of its part of the
    vocabulary, it draws all but what is cut.
    """
    folder = _folder(folders, name)
    top_k = 0 if name == "llama-even" else 40
    wanted = _alone(folder, top_k=top_k)
    if not top_k:
        monkeypatch.setattr(engine_module, "sample", None)
    bundle = compiled(folder, PHASES, ranks, stages, sampler=name in SAMPLED)
    # Of three ranks the spare has the first one's part, and the last one is killed.
    spares = int(ranks == 3)
    with _spread(bundle, folder, spares) as engine:
        prompt, count = _requests()[2].tokens, 64
        (made,) = run(engine, Request(9, prompt, count, 0, GREEDY, chunk=16))
        assert made == generated(of_folder(folder), prompt, count)
        assert run(engine, *_requests(top_k)) == wanted
        requests = _requests(top_k)
        for _ in range(12):
            advance(engine, requests)
        victim = engine.describe()["ranks"][-1]
        os.kill(victim["pid"], signal.SIGKILL)
        with pytest.raises(EngineLost, match=f"rank {victim['rank']} is lost"):
            _ticks(engine, requests)
        with pytest.raises(EngineLost, match="recover"):
            engine.tick(Tick())
        reserve = engine.describe()["spares"]
        engine.recover()
        assert engine.describe()["epoch"] == 2
        if reserve:
            assert engine.describe()["ranks"][-1]["pid"] == reserve[0]
        for request in requests:  # the tokens so far are the truth
            request.computed = 0
        assert run(engine, *requests) == wanted


def test_a_spare_takes_the_place_of_a_lost_rank_and_one_is_started_without(
    folders: dict[str, Path],
) -> None:
    """The second time there is no spare either: it was killed with the rank."""
    folder = _folder(folders, "llama")
    (request, *_) = _requests()
    with _spread(compiled(folder, PHASES, 2), folder, spares=1) as engine:
        (spare,) = engine.describe()["spares"]
        for victims in (1, 2):
            state = engine.describe()
            pids = [state["ranks"][1]["pid"], *state["spares"]]
            for pid in pids[:victims]:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineLost):
                _ticks(engine, [request])
            engine.recover()
            now = engine.describe()
            assert now["epoch"] == victims + 1
            assert (now["ranks"][1]["pid"] == spare) == (victims == 1)
            assert now["spares"] not in ([], state["spares"])
            request.computed = 0
        assert len(run(engine, request)[0]) == 24


def _other(folder: Path, to: Path, **config: Any) -> Path:
    """The folder of a model with other weights, and other values of its config."""
    shutil.copytree(folder, to)
    values = weights.mapped(folder)
    name = "model.embed_tokens.weight"
    changed = {n: a[::-1].copy() if n == name else a for n, a in values.items()}
    (to / "model.safetensors").write_bytes(safetensors_io.to_bytes(changed))
    said = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps(said))
    return to


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_weights_are_served_from_the_next_tick_on(
    ranks: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Prepared beside the old ones; another model is refused, and nothing changes."""
    folder = _folder(folders, "llama")
    other = _other(folder, tmp_path / "other")
    another = _other(folder, tmp_path / "another", rope_theta=7.0)
    (request, *_) = _requests()
    engine = of_bundle(compiled(folder, PHASES, ranks), folder, slots=SLOTS)
    try:
        before = run(engine, request)
        with pytest.raises(ConfigError, match=r"rope_theta is 7\.0 in config\.json"):
            engine.prepare(str(another))
        prepared = engine.prepare(str(other))
        request = _requests()[0]
        assert run(engine, request) == before
        engine.swap(prepared)
        assert engine.describe()["weights"] == str(other)
        (after,) = run(engine, _requests()[0])
        assert after == _alone(other, 1)[0] != before[0]
    finally:
        engine.close()


# --- parts of the weights ---


def test_parts_of_the_weights_serve_as_the_whole(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = _folder(folders, "llama"), tmp_path / "shards"
    assert shard.main([str(folder), "--mesh", "tp=2", "-o", str(out)]) == 0
    assert capsys.readouterr().out.count("29 tensors") == 2
    assert (out / "config.json").exists()
    assert not list(out.glob("*.safetensors"))
    sizes = [f.stat().st_size for f in sorted(out.glob("rank_*/*"))]
    whole = (folder / "model.safetensors").stat().st_size
    assert max(sizes) < 0.6 * whole
    with _spread(compiled(folder, PHASES, 2), out) as engine:
        assert run(engine, *_requests()) == _alone(folder)


@pytest.mark.slow  # compiles and starts four meshes
@pytest.mark.timeout(1200)  # beside other work a compile alone takes minutes
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("llama", "pp=2"),
        ("llama-tied", "pp=2"),
        ("llama", "pp=2,tp=2"),
        ("qwen3-moe", "tp=2,pp=2"),
    ],
)
def test_parts_of_stages_serve_as_the_whole(
    name: str, mesh: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A stage's file has its layers alone; a tied table is in both."""
    folder, out = _folder(folders, name), tmp_path / "shards"
    assert shard.main([str(folder), "--mesh", mesh, "-o", str(out)]) == 0
    axes = parse(mesh)
    layers = [
        {n.split(".")[2] for n in weights.mapped(part) if ".layers." in n}
        for part in sorted(out.glob("rank_*"))
    ]
    of_stage = axes.get("tp", 1)
    places = [place["pp"] for place in Mesh("mesh", axes).members]
    assert layers == [{str(place)} for place in places]
    whole = (folder / "model.safetensors").stat().st_size
    sizes = [f.stat().st_size for f in sorted(out.glob("rank_*/*"))]
    assert max(sizes) < 0.8 * whole / of_stage
    with _spread(compile_folder(out, PHASES, CONTEXT, mesh=axes), out) as engine:
        assert run(engine, *_requests()) == _alone(folder)


@pytest.mark.slow  # compiles panels of integers for two stages
def test_stages_hold_weights_of_integers(folders: dict[str, Path]) -> None:
    """Stages cut no matrix, so they have the panels of one device."""
    folder = _folder(folders, "llama")
    found = []
    for mesh in ({}, {"pp": 2}):
        made = compile_folder(folder, PHASES, CONTEXT, mesh=mesh, weights="int8")
        engine = of_bundle(made, folder, slots=SLOTS)
        found.append(run(engine, *_requests()))
        engine.close()
    assert found[0] == found[1]


def test_parts_of_another_mesh_are_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = _folder(folders, "llama-tied")
    assert shard.main([str(folder), "--mesh", "tp=4", "-o", str(tmp_path)]) == 0
    bundle = compiled(_folder(folders, "llama"), PHASES, 2)
    with pytest.raises(ConfigError, match=r"mesh tp=4, and the program is for tp=2"):
        Spread(bundle, tmp_path, slots=SLOTS)
    (tmp_path / "shards.json").write_text("{}")
    with pytest.raises(ConfigError, match="no list of shards"):
        Spread(bundle, tmp_path, slots=SLOTS)


def test_ranks_with_other_weights_are_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """The same model, of another state."""
    folder = _folder(folders, "llama")
    assert shard.main([str(folder), "--mesh", "tp=2", "-o", str(tmp_path)]) == 0
    said = json.loads((tmp_path / "shards.json").read_text())
    said["fingerprint"] = 64 * "0"
    (tmp_path / "shards.json").write_text(json.dumps(said))
    bundle = compiled(folder, PHASES, 2)
    file = bundle.write(tmp_path / "model.pcp")

    def start(_: Path, *at: Any) -> Any:
        return start_rank(str(file), SLOTS, "local-sync", folder, *at)

    with pytest.raises(StateMismatch, match="rank 1 has another bundle, other weights"):
        Spread(bundle, tmp_path, slots=SLOTS, spawn=start, device="local-sync")


def test_a_rank_that_cannot_begin_is_told_at_once(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = _folder(folders, "llama")
    start = partial(start_rank, "no.pcp", SLOTS, "local-sync")
    with pytest.raises(RuntimeFault, match="rank 1 did not come"):
        Spread(compiled(folder, PHASES, 2), folder, slots=SLOTS, spawn=start)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("tp=3", "the model has 2 keys and 2 queries for each; at most 2"),
        ("pp=3", "the model has 2 layers, and a stage has one at least"),
        ("dp=2", "mesh dp=2: a model is served over tp=N"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(
    mesh: str,
    message: str,
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = _folder(folders, "llama")
    assert shard.main([str(folder), "--mesh", mesh, "-o", str(tmp_path)]) != 0
    assert message in capsys.readouterr().err


def test_a_folder_with_files_is_not_written_to(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(folders, "llama")
    assert shard.main([str(folder), "--mesh", "tp=2", "-o", str(folder)]) == 2
    assert "is not empty" in capsys.readouterr().err


# --- commands ---


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("", 0, ""),  # the server is gone
        ("nonsense", 2, "RANK HOST:PORT is expected"),
        ("7 127.0.0.1:1", 2, "the bundle is for 2 ranks"),
    ],
)
def test_a_spare_does_what_its_line_says(
    line: str,
    code: int,
    message: str,
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = _folder(folders, "llama")
    file = compiled(folder, PHASES, 2).write(tmp_path / "m.pcp")
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n" * bool(line)))
    asked = [str(file), str(folder), "--rank", "1", "--spare", "--device", "local-sync"]
    assert serve_rank.main(asked) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_does_not_exist_is_refused(
    rank: int,
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = _folder(folders, "llama")
    file = compiled(folder, PHASES, 2).write(tmp_path / "m.pcp")
    asked = ["--rank", str(rank), "--connect", "127.0.0.1:1"]
    assert serve_rank.main([str(file), str(folder), *asked]) == 2
    assert "rank 0 is the server, and these are 1 to 1" in capsys.readouterr().err


def test_phases_follow_from_slots_and_context() -> None:
    assert phases(4, 256) == ["prefill:32,128,2x32,4x32", "decode:1,2,4"]
    drafting = phases(2, 256, drafted=4), phases(2, 16, drafts=True)
    assert drafting[0] == ["prefill:32,128,2x32", "decode:1,2,1x5,2x5"]
    assert drafting[1] == ["prefill:16,1x2,2x2", "decode:1,2"]
    assert phases(5, [64, 512]) == ["prefill:32", "decode:1,2,4"]
    assert phases(1, 16) == ["prefill:16", "decode:1"]


def test_more_ranks_than_heads_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="at most 2 members can share them"):
        compiled(_folder(folders, "llama"), PHASES, 5)
