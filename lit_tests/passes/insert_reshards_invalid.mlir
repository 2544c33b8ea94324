// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-insert-reshards

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{a tensor has no pcp.sharding; run pcp-propagate-sharding first}}
func.func @bare(%x: tensor<8xf32>) -> tensor<8xf32> {
  return %x : tensor<8xf32>
}
