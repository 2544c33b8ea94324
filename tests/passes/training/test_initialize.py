"""First values: the generator's known answers, statistics, and determinism.

As IR in the interpreter, and as what a bundle has in its place: data for the runtime.
"""

import hashlib

import numpy as np
import pytest
from helpers.models.expanded_training import CLEAN, expanded
from helpers.oracles.staged_training import NO_PROGRAM
from helpers.servers.interpreter import Interpreter

from pcp.compiler import signature
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import ConfigError
from pcp.initializer import Init, parse
from pcp.passes.core.functions import Port, define
from pcp.passes.training import initialize
from pcp.runtime.program import drawing
from pcp.runtime.program.drawn_function import DrawnFunction

# Random123's own test vectors of threefry2x32, 20 rounds: counter, key, answer.
KNOWN = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x1CB996FC, 0xBB002BE7),
    ),
    (
        (0x243F6A88, 0x85A308D3),
        (0x13198A2E, 0x03707344),
        (0xC4923A9C, 0x483DF7A0),
    ),
)


def test_threefry_known_answers(interpreter: Interpreter) -> None:
    columns = [
        np.array([case[part][word] for case in KNOWN], np.uint32).view(np.int32)
        for part in (1, 0)
        for word in (0, 1)
    ]
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        type_ = hlo.tensor([len(KNOWN)], ir.IntegerType.get_signless(32))
        ports = [Port(name, "data", type_) for name in ("k0", "k1", "c0", "c1")]

        def build(k0: ir.Value, k1: ir.Value, c0: ir.Value, c1: ir.Value):
            drawn = initialize.threefry((k0, k1), (c0, c1))
            return [(Port("x", "result", type_), word) for word in drawn]

        define(module, "main", ports, build)
        text = str(module)
    found = interpreter.run(text, columns)
    for word in (0, 1):
        wanted = [case[2][word] for case in KNOWN]
        assert found[word].view(np.uint32).tolist() == wanted


def model(inits: dict[str, tuple[str, str]]) -> str:
    """A @main whose parameters have these types and initializers."""
    arguments = ", ".join(
        f'%{name}: {type_} {{pcp.name = "{name}", pcp.role = "param", '
        f'pcp.init = "{init}"}}'
        for name, (type_, init) in inits.items()
    )
    first, (type_, _) = next(iter(inits.items()))
    dims = list(range(type_.count("x")))
    return f"""
func.func @main({arguments}) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %{first} : {type_}
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = {dims}
      : ({type_}, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}}"""


BIG = "tensor<300x400xf32>"
PARAMETERS = {
    "normal": (BIG, "normal(0.02)"),
    "twin": (BIG, "normal(0.02)"),
    "shifted": (BIG, "normal(3.0, 0.5)"),
    "uniform": (BIG, "uniform(-0.1,0.3)"),
    "ones": ("tensor<7xf32>", "ones"),
    "zeros": ("tensor<7xf32>", "zeros"),
    "constant": ("tensor<7xf32>", "constant(0.25)"),
    "half": ("tensor<64x64xbf16>", "normal(1.0)"),
}


def drawn(parameters: dict[str, tuple[str, str]]) -> DrawnFunction:
    """@init of a model with these parameters, as the runtime has it."""
    after = f"pcp-first-values,{CLEAN}"
    module = expanded(model(parameters), keep=["init"], after=after)
    function = signature.functions(module, "main", "train")["init"]
    return DrawnFunction(NO_PROGRAM, "init", function)


@pytest.fixture(scope="module")
def program() -> DrawnFunction:
    return drawn(PARAMETERS)


def first(init: DrawnFunction, seed: int) -> dict[str, np.ndarray]:
    """The first values by name."""
    names = [t.name for t in init.signature.results]
    return dict(zip(names, init(np.int64(seed)), strict=True))


def test_normal(program: DrawnFunction) -> None:
    """Mean, deviation, skew, kurtosis and the share within one deviation."""
    found = first(program, 7)
    for x, mean, std in (
        (found["normal"], 0, 0.02),
        (found["shifted"], 3.0, 0.5),
        (found["half"].astype(np.float32), 0, 1.0),
    ):
        z = (x.astype(np.float64) - mean) / std
        root = np.sqrt(z.size)
        assert abs(z.mean()) < 5 / root
        assert abs(z.std() - 1) < 5 / root
        assert abs((z**3).mean()) < 5 * np.sqrt(15) / root
        assert abs((z**4).mean() - 3) < 5 * np.sqrt(96) / root
        assert abs((abs(z) < 1).mean() - 0.6827) < 5 * 0.47 / root
        assert abs(z).max() < 5.8  # 24 bits reach that far
        assert np.isfinite(z).all()


def test_neighbours_are_independent(program: DrawnFunction) -> None:
    x = first(program, 7)["normal"].astype(np.float64)
    for shifted in (np.roll(x, 1, 0), np.roll(x, 1, 1), x[::-1]):
        assert abs(np.corrcoef(x.ravel(), shifted.ravel())[0, 1]) < 5 / np.sqrt(x.size)


def test_uniform(program: DrawnFunction) -> None:
    x = first(program, 7)["uniform"].astype(np.float64)
    assert x.min() >= np.float32(-0.1)
    assert x.max() < 0.3
    counts, _ = np.histogram(x, bins=20, range=(-0.1, 0.3))
    expected = x.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 60  # χ², 19 degrees


def test_fills(program: DrawnFunction) -> None:
    found = first(program, 7)
    assert (found["ones"] == 1).all()
    assert (found["zeros"] == 0).all()
    assert (found["constant"] == 0.25).all()
    assert found["step"] == 0


def test_a_function_of_the_seed(program: DrawnFunction) -> None:
    """Same seed, same bits; other seeds (in either word) and parameters, others."""
    found = first(program, 7)
    again = first(program, 7)
    assert all(found[n].tobytes() == again[n].tobytes() for n in found)
    seen = {found["normal"].tobytes(), found["twin"].tobytes()}
    for seed in (8, 7 + 2**32, -7):
        seen.add(first(program, seed)["normal"].tobytes())
    assert len(seen) == 5


def test_does_not_depend_on_neighbours_in_the_list(program: DrawnFunction) -> None:
    """A tensor's values follow from seed, place and shape alone."""
    alone = {"normal": PARAMETERS["normal"]}
    assert first(drawn(alone), 7)["normal"].tobytes() == (
        first(program, 7)["normal"].tobytes()
    )


def test_as_the_ir_says(program: DrawnFunction, interpreter: Interpreter) -> None:
    """@init of `pcp-expand-training` in the interpreter: one last place apart at most.

    The interpreter has the `log` and `cos` of the C library.
    """
    small = {
        name: (type_.replace("300x400", "30x40").replace("64x64", "6x4"), init)
        for name, (type_, init) in PARAMETERS.items()
    }
    module = expanded(model(small), keep=["init"])
    text = str(module).replace("@init(", "@main(")
    for seed in (7, -7, 2**32 + 7):
        found = first(drawn(small), seed)
        wanted = interpreter.run(text, [np.array(seed, np.int64)])
        for (name, ours), theirs in zip(found.items(), wanted, strict=True):
            bits = np.uint16 if name == "half" else np.uint32
            a, b = (np.ascontiguousarray(x).view(bits) for x in (ours, theirs))
            off = np.abs(a.astype(np.int64) - b.astype(np.int64))
            assert off.max(initial=0) <= 2, name
            assert (off > 0).mean() < 0.01, name


def test_functions_are_rounded_correctly() -> None:
    """Every eighth of the 2^24 arguments that normals have."""
    k = np.arange(1, 2**24 + 1, 8, dtype=np.uint32)
    u = k.astype(np.float32) * np.float32(2.0**-24)
    wanted = np.log(u.astype(np.longdouble)).astype(np.float32)
    assert drawing.log(u).tobytes() == wanted.tobytes()
    x = (k - 1).astype(np.float32) * np.float32(2.0**-24) * np.float32(2 * np.pi)
    wanted = np.cos(x.astype(np.longdouble)).astype(np.float32)
    assert drawing.cosine(x).tobytes() == wanted.tobytes()


DIGEST = "cd8d5f77f9389c396cf5dc7621fb515af925bef09988370875bbd560cf3895f4"
WHOLE = (7, 5, 6)
PARTS = {
    "whole": ((0, 0, 0), WHOLE),
    "rows": ((3, 0, 0), (2, 5, 6)),
    "columns": ((0, 0, 4), (7, 5, 2)),
    "middle": ((0, 1, 0), (7, 3, 6)),
    "box": ((2, 3, 1), (4, 2, 3)),
    "nothing": ((2, 0, 0), (0, 5, 6)),
}


@pytest.mark.parametrize("chunk", [4, 1 << 15])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_drawn_as_in_the_whole(
    part: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(start: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        facts = {"seed": 7, "stream": 3, "whole": WHOLE, "start": start}
        return drawing.first_values("normal(1.0)", "f32", shape, **facts)

    everything = draw((0, 0, 0), WHOLE)
    monkeypatch.setattr(drawing, "CHUNK", chunk)
    start, shape = PARTS[part]
    where = tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))
    assert draw(start, shape).tobytes() == everything[where].tobytes()


def test_digest() -> None:
    """The bits are the same on every machine: these."""
    facts = {"seed": 1234, "stream": 5, "whole": (1000, 100), "start": (0, 0)}
    x = drawing.first_values("normal(0.02)", "f32", (1000, 100), **facts)
    assert hashlib.sha256(x.tobytes()).hexdigest() == DIGEST


def test_bf16_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded as ml_dtypes rounds."""
    facts = {"seed": 7, "stream": 3, "whole": (5000,), "start": (0,)}
    wanted = drawing.first_values("normal(0.02)", "bf16", (5000,), **facts)
    monkeypatch.setattr(drawing, "numpy_dtype", lambda _: np.dtype(np.uint16))
    found = drawing.first_values("normal(0.02)", "bf16", (5000,), **facts)
    assert found.dtype == np.uint16
    assert found.tobytes() == wanted.tobytes()


def test_parse() -> None:
    assert parse("normal(0.02)") == Init("normal", (0.02,))
    assert parse(" uniform( -1, 2e-1 ) ") == Init("uniform", (-1.0, 0.2))
    assert parse("ones") == Init("ones")


REFUSED = {
    "gauss(1)": "no initializer 'gauss\\(1\\)'",
    "norml(1)": "Did you mean 'normal'",
    "normal": "has 0 numbers",
    "normal(1,2,3)": "has 3 numbers",
    "ones(1)": "has 1 numbers",
    "normal(x)": "could not convert",
    "normal(nan)": "not finite",
    "normal(1": "no initializer",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]):
        parse(text)
