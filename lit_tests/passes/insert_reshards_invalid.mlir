// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-insert-reshards

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{a tensor has no pcp.sharding; run pcp-propagate-sharding first}}
func.func @bare(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}

// -----

// What a user writes is looked at by each pass that reads it.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @axis(%x: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) -> (tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"]], [], []>}) {
  // expected-error@+1 {{names axis "tp", which mesh @m has not (axes: dp)}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [["tp"]], [], []>]} : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @twice(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> (tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) {
  // expected-error@+1 {{the sharding [dp, dp] uses "dp" twice}}
  %0 = stablehlo.tanh %x {pcp.sharding = [#pcp.sharding<@m, [["dp"], ["dp"]], [], []>]} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
