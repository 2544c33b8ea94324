// RUN: pcp-opt %s --pcp-strip-metadata --split-input-file --verify-diagnostics

"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{pcp.all_reduce: not lowered; run pcp-lower-to-runtime before pcp-strip-metadata}}
  %0 = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  return %z : tensor<f32>
}
// expected-error@below {{pcp.grad: not expanded; run pcp-grad before pcp-strip-metadata}}
"pcp.grad"() {fn = @main, sym_name = "main_grad", wrt = [0]} : () -> ()
