// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-partition

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{an argument has no pcp.sharding; propagate first}}
func.func @bare(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @clash(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}, %y: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [[]], [], []>}) -> tensor<8xf32> {
  // expected-error@+1 {{its tensors do not fit; run pcp-insert-reshards first}}
  %0 = stablehlo.add %x, %y {pcp.sharding = [#pcp.sharding<@m, [["dp"]], [], []>]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}
