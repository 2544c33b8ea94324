// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-split-batch

// expected-error@+1 {{its devices are not described; give weights=5,2,1}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// expected-error@+1 {{mesh @m has no axis "dp" (tp)}}
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
// expected-error@+1 {{it has no throughput of f32; measure it: pcp probe}}
"pcp.device"() {sym_name = "a", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 1>], devices = [@a], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
