"""Programs of one collective over two members, and the shape of their argument."""

MESH = '"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"}'
ALONG = 'axes = ["dp"], mesh = @m'
F, HALF, INNER = "tensor<4x6xf32>", "tensor<2x6xf32>", "tensor<4x3xf32>"


def program(op: str, attributes: str, given: str, result: str) -> str:
    """`@main` with the collective."""
    return f"""{MESH} : () -> ()
    func.func @main(%x: {given}) -> {result} {{
      %0 = "pcp.{op}"(%x) {{{attributes}, {ALONG}}} : ({given}) -> {result}
      return %0 : {result}
    }}"""


#: name: (text, shape of the argument); all are linear where they are tried.
CASES = {
    "all_reduce_sum": (program("all_reduce", 'kind = "sum"', F, F), (4, 6)),
    "all_reduce_mean": (program("all_reduce", 'kind = "mean"', F, F), (4, 6)),
    "all_reduce_max": (program("all_reduce", 'kind = "max"', F, F), (4, 6)),
    "all_reduce_min": (program("all_reduce", 'kind = "min"', F, F), (4, 6)),
    "reduce_scatter_sum": (
        program("reduce_scatter", 'kind = "sum", dim = 0, sizes = []', F, HALF),
        (4, 6),
    ),
    "reduce_scatter_mean": (
        program("reduce_scatter", 'kind = "mean", dim = 1, sizes = [3, 3]', F, INNER),
        (4, 6),
    ),
    "all_gather": (program("all_gather", "dim = 0, sizes = []", HALF, F), (2, 6)),
    "all_gather_inner": (
        program("all_gather", "dim = 1, sizes = [3, 3]", INNER, F),
        (4, 3),
    ),
    "all_to_all": (
        program("all_to_all", "split = 0, concat = 1", F, "tensor<2x12xf32>"),
        (4, 6),
    ),
    "broadcast": (program("broadcast", "root = 1", F, F), (4, 6)),
    "permute": (program("permute", "pairs = [[0, 1]]", F, F), (4, 6)),
    "swap": (program("permute", "pairs = [[0, 1], [1, 0]]", F, F), (4, 6)),
    "started": (
        f"""{MESH} : () -> ()
    func.func @main(%x: {F}) -> {F} {{
      %f = "pcp.start"(%x) ({{
      ^bb0(%a: {F}):
        %r = "pcp.all_reduce"(%a) {{kind = "sum", {ALONG}}} : ({F}) -> {F}
        "pcp.yield"(%r) : ({F}) -> ()
      }}) {{channel = 7}} : ({F}) -> !pcp.future<{F}>
      %s = stablehlo.negate %x : {F}
      %w = "pcp.wait"(%f) : (!pcp.future<{F}>) -> {F}
      %0 = stablehlo.add %s, %w : {F}
      return %0 : {F}
    }}""",
        (4, 6),
    ),
}
#: What is said of shardings: no runtime knows it, and nothing changes by it.
ANNOTATED = f"""{MESH} : () -> ()
    func.func @main(%x: {F}) -> {F} {{
      %0 = "pcp.constraint"(%x) {{sharding = #pcp.sharding<@m, [[], []], [], []>}}
          : ({F}) -> {F}
      %1 = "pcp.barrier_prop"(%0) {{direction = "none"}} : ({F}) -> {F}
      %2 = "pcp.reshard"(%1) {{sharding = #pcp.sharding<@m, [[], []], [], []>}}
          : ({F}) -> {F}
      return %2 : {F}
    }}"""
