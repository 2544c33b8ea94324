"""Who takes part in benchmarks/step.py and gpu_check.py: one GPT trained four ways.

Each contestant is built in a process of its own, from the same folder: `job.npz`
(weights, ids, targets) and, for pcp, `step.pcp`. `step()` does forward, backward
and AdamW, and returns the loss as a float; weights and state stay where the
contestant keeps them.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

MODEL = Path(__file__).parent.parent / "examples" / "models" / "nanogpt_small.py"
LR, BETA1, BETA2, EPS, DECAY = 6e-4, 0.9, 0.95, 1e-8, 0.1
OPTIMIZER = (
    f"adamw{{lr={LR},beta1={BETA1},beta2={BETA2},eps={EPS},weight_decay={DECAY}}}"
)

COMPARED = 5  # steps whose losses are compared

Step = Callable[[], float]


@dataclass(frozen=True)
class Size:
    """The GPT and its batch."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    batch: int = 64
    block: int = 32
    vocabulary: int = 65
    compute: str = "f32"
    """f32, or bf16: parameters, state and sums stay f32."""

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, d={self.width}, {self.heads} heads, "
            f"batch {self.batch}x{self.block}, vocabulary {self.vocabulary}, "
            f"{self.compute}"
        )


SIZES = {
    "small": Size(),
    "medium": Size(layers=4, width=256, heads=8, batch=16, block=128),
    "vocabulary": Size(4, 256, 8, 16, 128, vocabulary=8192),
    "large": Size(12, 512, 8, 2, 512, vocabulary=4096),
    "gpt2": Size(12, 768, 12, 1, 256, vocabulary=50257),
}


def torch_model(size: Size) -> Any:
    """The example's PyTorch source at this size."""
    spec = spec_from_file_location("nanogpt_small", MODEL)
    assert spec is not None
    assert spec.loader is not None
    source = module_from_spec(spec)
    sys.modules["nanogpt_small"] = source
    spec.loader.exec_module(source)
    return source.GPT(
        block_size=size.block,
        vocabulary=size.vocabulary,
        width=size.width,
        heads=size.heads,
        layers=size.layers,
    )


def load(folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Weights by name, ids, targets."""
    with np.load(folder / "job.npz") as stored:
        arrays = dict(stored)
    return arrays, arrays.pop("ids"), arrays.pop("targets")


# --- pcp ---


def pcp(
    folder: Path, size: Size, driver: str = "local-task", bundle: str = "step.pcp"
) -> Step:
    """@grad and @apply of the train bundle, everything on the device."""
    from pcp.runtime.program.executor import Program

    program = Program.load(folder / bundle, device=driver)
    weights, ids, targets = load(folder)
    signature = program.manifest.function("apply")
    params = [
        program.to_device(weights[spec.name])
        for spec in signature.inputs[: len(weights)]
    ]
    count = len(params)
    state = list(program["init"](np.int64(0), device_arrays=True)[count:])
    batch = [program.to_device(ids), program.to_device(targets)]

    def step() -> float:
        nonlocal params, state
        loss, *grads = program["grad"](*params, *batch, device_arrays=True)
        after = program["apply"](*params, *grads, *state, device_arrays=True)
        params, state = list(after[:count]), list(after[count:])
        return float(loss.numpy())

    return step


def pcp_tuned(folder: Path, size: Size) -> Step:
    """The same with products as `pcp tune` measured them before."""
    return pcp(folder, size, bundle="tuned.pcp")


def pcp_sync(folder: Path, size: Size) -> Step:
    """The same on one thread, without a task system."""
    return pcp(folder, size, "local-sync")


# --- jax ---


def jax(folder: Path, size: Size, products: str = "highest") -> Step:
    """`jit` of value_and_grad and AdamW, weights and state donated.

    On NVIDIA's devices f32 products are TF32 unless `products` is "highest".
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", products)

    weights, ids, targets = load(folder)

    def loss(w: dict, ids: Any, targets: Any) -> Any:
        return _jax_loss(jnp, jax, w, ids, targets, size)

    def update(w: dict, m: dict, v: dict, t: Any, ids: Any, targets: Any) -> Any:
        value, g = jax.value_and_grad(loss)(w, ids, targets)
        t = t + 1
        m = {k: BETA1 * m[k] + (1 - BETA1) * g[k] for k in w}
        v = {k: BETA2 * v[k] + (1 - BETA2) * g[k] * g[k] for k in w}
        c1, c2 = 1 - BETA1**t, 1 - BETA2**t
        w = {
            k: w[k] * (1 - LR * DECAY) - LR * (m[k] / c1) / (jnp.sqrt(v[k] / c2) + EPS)
            for k in w
        }
        return value, w, m, v, t

    jitted = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    w = {k: jnp.asarray(x) for k, x in weights.items()}
    m, v = ({k: jnp.zeros_like(x) for k, x in w.items()} for _ in "mv")
    t = jnp.float32(0)
    ids, targets = jnp.asarray(ids, jnp.int32), jnp.asarray(targets, jnp.int32)

    def step() -> float:
        nonlocal w, m, v, t
        value, w, m, v, t = jitted(w, m, v, t, ids, targets)
        jax.block_until_ready((w, m, v))
        return float(value)

    return step


def _jax_loss(jnp: Any, jax: Any, w: dict, ids: Any, targets: Any, size: Size) -> Any:
    def norm(x: Any, name: str) -> Any:
        x, kind = x.astype(jnp.float32), x.dtype
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        unit = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        return unit.astype(kind) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x: Any) -> Any:
        shape = (size.batch, size.block, size.heads, size.width // size.heads)
        return x.reshape(shape).transpose(0, 2, 1, 3)

    if size.compute == "bf16":
        w = {k: x.astype(jnp.bfloat16) for k, x in w.items()}
    causal = jnp.tril(jnp.ones((size.block, size.block), bool))
    x = w["token.weight"][ids] + w["position.weight"]
    for i in range(size.layers):
        p = f"blocks.{i}"
        qkv = norm(x, f"{p}.norm1") @ w[f"{p}.attention.qkv.weight"].T
        q, k, v = map(heads, jnp.split(qkv, 3, -1))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size.width // size.heads)
        scores = jnp.where(causal, scores, -jnp.inf).astype(jnp.float32)
        mixed = jax.nn.softmax(scores, -1).astype(v.dtype) @ v
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ w[f"{p}.attention.projection.weight"].T
        up = norm(x, f"{p}.norm2") @ w[f"{p}.up.weight"].T + w[f"{p}.up.bias"]
        x = x + jnp.maximum(up, 0) @ w[f"{p}.down.weight"].T + w[f"{p}.down.bias"]
    logits = (norm(x, "norm") @ w["head.weight"].T).astype(jnp.float32)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -chosen.mean()


# --- torch ---


def torch_module(folder: Path, size: Size) -> Any:
    """The model with the folder's weights."""
    import torch

    weights, model = load(folder)[0], torch_model(size)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    return model


def torch_adamw(parameters: Any) -> Any:
    """The optimizer, fused."""
    import torch

    return torch.optim.AdamW(
        parameters,
        lr=LR,
        betas=(BETA1, BETA2),
        eps=EPS,
        weight_decay=DECAY,
        fused=True,
    )


def torch_eager(
    folder: Path,
    size: Size,
    *,
    compiled: bool = False,
    device: str = "cpu",
    products: str = "highest",
) -> Step:
    """Autograd and the fused AdamW; "high" `products` of f32 are TF32 on a GPU."""
    import torch

    torch.set_float32_matmul_precision(products)
    _, ids, targets = load(folder)
    model = torch_module(folder, size).to(device)
    optimizer = torch_adamw(model.parameters())
    forward = torch.compile(model) if compiled else model
    x, y = (torch.from_numpy(values).to(device) for values in (ids, targets))
    cast = torch.autocast(device, torch.bfloat16, enabled=size.compute == "bf16")

    def step() -> float:
        with cast:
            loss = forward(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        return loss.item()

    return step


def torch_compile(folder: Path, size: Size) -> Step:
    """The same with the model through torch.compile."""
    return torch_eager(folder, size, compiled=True)


CONTESTANTS: dict[str, Callable[[Path, Size], Step]] = {
    "pcp": pcp,
    "pcp-tuned": pcp_tuned,
    "pcp-sync": pcp_sync,
    "jax": jax,
    "torch": torch_eager,
    "torch-compile": torch_compile,
}

ON_CUDA: dict[str, Callable[[Path, Size], Step]] = {
    "pcp@cuda": partial(pcp, driver="cuda"),
    "jax@cuda": jax,
    "jax-tf32@cuda": partial(jax, products="default"),
    "torch@cuda": partial(torch_eager, device="cuda"),
    "torch-tf32@cuda": partial(torch_eager, device="cuda", products="high"),
    "torch-compile@cuda": partial(torch_eager, device="cuda", compiled=True),
}
"""Those of gpu_check.py; JAX takes the GPU by itself where it has one."""


def draw(folder: Path, size: Size) -> Any:
    """Weights and a batch, for all contestants; gives the model."""
    import torch

    from pcp.tools.support.tensor_files import save

    torch.manual_seed(0)
    model = torch_model(size)
    random = np.random.default_rng(0)
    shape = (size.batch, size.block)
    ids, targets = (random.integers(0, size.vocabulary, shape) for _ in "xy")
    weights = {k: p.detach().numpy() for k, p in model.named_parameters()}
    arrays = {"ids": ids, "targets": targets, **weights}
    save(folder / "job.npz", [*arrays], [*arrays.values()])
    return model


def prepare(
    folder: Path,
    size: Size,
    report: Callable[[str], None],
    target: str = "cpu:host",
    *,
    tuned: bool = False,
) -> None:
    """Weights, a batch and pcp's bundle, for all contestants; `tuned`: another one."""
    module = exported(folder, size)
    compiled(module, size, report, targets=(target,)).write(folder / "step.pcp")
    if tuned:
        from pcp.tools.tune import search

        table = folder / "tuning.json"
        on, products = search.products(module, _options(size, targets=(target,)))
        table.write_text(search.tune(products, on, report).text())
        bundle = compiled(module, size, report, targets=(target,), tuning=table)
        bundle.write(folder / "tuned.pcp")
    report(f"model: {asdict(size)}")


def exported(folder: Path, size: Size) -> Any:
    """The model as pcp takes it; draws what the folder holds."""
    import torch

    from pcp.frontends.torch import from_torch

    model = draw(folder, size)
    _, ids, targets = load(folder)
    return from_torch(model, torch.from_numpy(ids), torch.from_numpy(targets))


def compiled(module: Any, size: Size, report: Callable[[str], None], **how: Any) -> Any:
    """The training bundle; `how` are options of pcp's."""
    from pcp.compiler.driver import compile as compile_bundle

    return compile_bundle(module, _options(size, report=report, **how))


def _options(size: Size, **how: Any) -> Any:
    from pcp.compiler.options import CompileOptions

    return CompileOptions(
        mode="train",
        optimizer=OPTIMIZER,
        algorithm="none",
        precision=f"params=f32,compute={size.compute},reduce=f32",
        **how,
    )
