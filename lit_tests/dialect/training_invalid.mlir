// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<4xf32> for tensor<8x4xf32>; they must be equal}}
  %0 = "pcp.stop_gradient"(%x) {} : (tensor<8x4xf32>) -> tensor<4xf32>
  return
}
