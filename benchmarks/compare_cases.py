"""The command lines of pcp-compile that `compare_checkouts.py` runs, as tables.

A model is a file of examples/models, one that EXPORTS makes, or one of FILES.
"""

import json

_EXAMPLES = "--torch {root}/examples/models"

#: What makes the models of the examples that are not in the repository as IR.
EXPORTS = {
    "mlp.mlir": f"{_EXAMPLES}/mlp.py:MLP --batch-size 32",
    "cnn.mlir": f"{_EXAMPLES}/cnn.py:CNN --batch-size 32",
    "llama.mlir": f"{_EXAMPLES}/llama_block.py:Llama --batch-size 8 --block-size 16",
}

_GPT, _SMALL = "nanogpt_small.mlir", "small.mlir"

#: A loss with two parameters; the mesh and the elastic axis are the model's own.
_LOSS = """
func.func @main(
    %w0: tensor<4x8xf32> {pcp.role = "param", pcp.name = "w0"},
    %w1: tensor<8x2xf32> {pcp.role = "param", pcp.name = "w1"},
    %x: tensor<8x4xf32> {pcp.role = "data", pcp.name = "x"}) -> tensor<f32> {
  %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %t = stablehlo.tanh %h : tensor<8x8xf32>
  %y = stablehlo.dot_general %t, %w1, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>
  %s = stablehlo.multiply %y, %y : tensor<8x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%s init: %zero) applies stablehlo.add
    across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
"""
_MESH = """"pcp.mesh"() {axes = [#pcp.axis<"%s", %d>], devices = [],
  sym_name = "%s"} : () -> ()
"""

_TENSORS = (
    '"*.up.weight": [["tp"]], "*.up.bias": [["tp"]], "*.down.weight": [[], ["tp"]],'
    '"token.weight": [["tp"]], "head.weight": [["tp"]]'
)


def _cluster(*rates: float) -> str:
    """Devices a, b, ... of so many FLOP/s each, and a link between all."""
    devices = {
        name: {
            "target": "cpu",
            "memory": 8 << 30,
            "throughput": {"f32": rate},
            "membw": 2e10,
            "ordinal": number,
        }
        for number, (name, rate) in enumerate(zip("abcdefgh", rates, strict=False))
    }
    links = [{"ends": list(devices), "bandwidth": 1e9, "latency_ns": 2e4}]
    return json.dumps({"devices": devices, "links": links})


FILES = {
    _SMALL: _LOSS,
    "spread.mlir": _MESH % ("dp", 2, "mesh") + _LOSS,
    "elastic.mlir": _MESH % ("workers", -1, "world") + _LOSS,
    "columns.json": '{"tensors": {"w0": [[], ["tp"]], "w1": [["tp"]]}}',
    "tensors.json": f'{{"tensors": {{{_TENSORS}}}}}',
    "equal.json": _cluster(1e10, 1e10),
    "unequal.json": _cluster(3e10, 1e10),
}

_TRAIN = "--target cpu --mode train"
_TP = f"{_TRAIN} --mesh tp=2 --sharding tensors.json"
_COLUMNS = "--target cpu --mesh tp=2 --sharding columns.json"

#: One of each algorithm and of each optimizer, on the small model.
_ALGORITHMS = (
    "none", "ddp", "average", "diloco{lr=0.7}", "diloco{lr=0.7,momentum=0.8}", "snoo",
    "async_diloco", "streaming_diloco{fragments=2}", "decoupled", "muloco", "demo",
    "sparseloco", "eager", "noloco", "mezo", "forward_gradient", "async_local_sgd",
)  # fmt: skip
_OPTIMIZERS = ("sgd{lr=0.1}", "nesterov", "adamw{lr=6e-4}", "lion", "muon", "adafactor")

COMMANDS: tuple[tuple[str, str], ...] = (
    # as the README and the docs write them
    (_GPT, "--target sm_90a"),
    (_GPT, "--target cpu --mode grad"),
    (_GPT, f"{_TRAIN} --mesh dp=2 --zero 3"),
    (_GPT, f"{_TRAIN} --mesh dp=2,tp=2 --sharding megatron.json"),
    (_GPT, "--target cpu --mode grad --mesh dp=2,tp=2 --sharding megatron.json"),
    (_GPT, "--mode train --mesh dp=2 --target cpu:host --target cpu"),
    # one program
    (_GPT, "--target cpu"),
    (_GPT, "--target cpu --mode forward"),
    (_GPT, "--target cpu --target gfx942 --target vulkan --mode grad"),
    (_GPT, f"{_TRAIN} --algorithm none --optimizer 'muon{{lr=0.02}}'"),
    # a program for each device
    (_GPT, _TP),
    (_GPT, f"{_TP} --wire bf16"),
    (_GPT, f"{_TRAIN} --mesh dp=2 --bucket-bytes 0 --inflight 0"),
    (_GPT, f"{_TRAIN} --mesh dp=4 --zero 1"),
    (_GPT, f"{_TRAIN} --mesh dp=3 --zero 2"),
    (_GPT, f"{_TRAIN} --mesh dp=2 --algorithm ddp"),
    (_GPT, "--target cpu --mode forward --mesh dp=2"),
    (_GPT, f"{_TRAIN} --mesh pp=2 --microbatches 8 --schedule 1f1b --tied"),
    (_GPT, f"{_TRAIN} --mesh pp=2 --microbatches 4 --schedule gpipe --tied"),
    (_GPT, f"{_TRAIN} --mesh pp=2 --microbatches 4 --schedule zb-h1 --tied"),
    (_GPT, f"{_TRAIN} --mesh pp=2,dp=2 --zero 1 --tied"),
    (_GPT, f"{_TRAIN} --mesh pp=2,tp=2 --sharding tensors.json --tied"),
    (_GPT, "--mode train --cluster equal.json --mesh dp=2"),
    (_GPT, "--mode train --cluster unequal.json --mesh dp=2"),
    (_GPT, "--mode train --cluster unequal.json"),
    (_GPT, f"{_TRAIN} --mesh dp=2 --split dp=5,3"),
    # the other examples
    ("mlp.mlir", "--target cpu:host"),
    ("mlp.mlir", f"{_TRAIN} --mesh dp=2"),
    ("cnn.mlir", "--target cpu"),
    ("cnn.mlir", f"{_TRAIN} --mesh dp=2 --zero 2"),
    ("llama.mlir", "--target cpu"),
    ("llama.mlir", f"{_TRAIN} --mesh dp=2,tp=2"),
    # each algorithm and each optimizer
    *((_SMALL, f"{_TRAIN} --algorithm '{name}'") for name in _ALGORITHMS),
    *((_SMALL, f"{_TRAIN} --optimizer '{name}'") for name in _OPTIMIZERS),
    *((_SMALL, f"{_TRAIN} --mesh dp=2 --optimizer '{name}'") for name in _OPTIMIZERS),
    # modes, meshes, and what is refused
    *((_SMALL, f"--target cpu --mode {mode}") for mode in ("forward", "grad")),
    *((_SMALL, f"{_COLUMNS} --mode {mode}") for mode in ("forward", "grad", "train")),
    *((_SMALL, f"--target cpu --mesh {mesh}") for mesh in ("dp=2", "pp=2")),
    *((_SMALL, f"{_TRAIN} --mesh dp=2 --zero {stage}") for stage in (1, 2, 3)),
    *((_SMALL, f"--mode train --cluster {name}.json") for name in ("equal", "unequal")),
    ("spread.mlir", "--target cpu"),
    ("spread.mlir", "--target cpu --mode grad"),
    ("elastic.mlir", "--target cpu"),
    (_SMALL, "--target cpu --emit mlir"),
    (_SMALL, "--target cpu --emit mlir --mesh dp=2"),
    (_SMALL, "--target cpu --emit vmfb --mode grad"),
    (_SMALL, "--target cpu --mesh workers=elastic"),
    (_SMALL, "--target cpu --zero 1"),
    (_SMALL, "--target cpu --wire bf16"),
    (_SMALL, "--target cpu --sharding columns.json"),
    (_SMALL, "--target cpu --mesh dp=2 --microbatches 2"),
    (_SMALL, "--cluster equal.json --zero 1"),
)  # fmt: skip

#: Those of `--quick`: one of each way through the compiler.
QUICK = (
    (_GPT, "--target cpu --mode grad"),
    (_GPT, _TP),
    *((model, flags) for model, flags in COMMANDS if model == "spread.mlir"),
    *((_SMALL, f"{_TRAIN} --algorithm '{name}'") for name in _ALGORITHMS[3:6]),
    *((_SMALL, f"{_TRAIN} --mesh dp=2 --zero {stage}") for stage in (1, 3)),
    (_SMALL, "--target cpu --mesh pp=2"),
    (_SMALL, "--mode train --cluster unequal.json"),
    (_SMALL, "--target cpu --emit mlir"),
)
