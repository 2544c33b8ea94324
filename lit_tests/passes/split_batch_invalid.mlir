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

// -----

// A device so slow that it would get no sample.
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {sym_name = "a", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
"pcp.device"() {sym_name = "b", target = @cpu, throughput = {f32 = 2.0e6}} : () -> ()
// expected-error@+1 {{member 1 along "dp" (@b) gets none of 8 samples (shares 8, 0); leave it out of the mesh, give it a larger weight, or use a larger batch}}
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
