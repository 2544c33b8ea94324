// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-name-exchanges)'

"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "workers_mesh"} : () -> ()
func.func @outer_step(%a: tensor<4x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}) -> tensor<4x8xf32> {
  // expected-error @+1 {{islands of unlike shape exchange plain sums alone; take another algorithm, or islands of one shape}}
  %0 = "pcp.all_reduce"(%a) {axes = ["workers"], kind = "trimmed_mean", mesh = @workers_mesh} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "workers_mesh"} : () -> ()
func.func @outer_step(%a: tensor<4x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}) -> tensor<4x8xf32> {
  // expected-error @+1 {{islands of unlike shape exchange numbers as they are; leave the codec out, or take islands of one shape}}
  %0 = "pcp.all_reduce"(%a) {axes = ["workers"], codec = "int8", kind = "sum", mesh = @workers_mesh} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
