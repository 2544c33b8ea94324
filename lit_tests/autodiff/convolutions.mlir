// RUN: pcp-opt %s --pcp-vjp | filecheck %s

// Both gradients are convolutions: of the spread cotangent with the kernel turned
// round, and of the input with the cotangent.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.reverse
// CHECK: stablehlo.convolution
// CHECK-SAME: lhs_dilate = [2]
// CHECK: stablehlo.convolution
// CHECK-SAME: rhs_dilate = [2]
func.func @main(%x: tensor<2x9x3xf32>, %w: tensor<3x3x4xf32>) -> tensor<2x4x4xf32> {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x9x3xf32>, tensor<3x3x4xf32>) -> tensor<2x4x4xf32>
  return %y : tensor<2x4x4xf32>
}
