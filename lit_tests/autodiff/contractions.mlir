// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// Both gradients are products without a transpose.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NEXT: stablehlo.dot_general %arg0, %arg1
// CHECK-NEXT: stablehlo.dot_general %arg2, %arg1, contracting_dims = [1] x [1]
// CHECK-NEXT: stablehlo.dot_general %arg0, %arg2, contracting_dims = [0] x [0]
// CHECK-NEXT: return
func.func @main(%x: tensor<3x4xf32>, %w: tensor<4x5xf32>) -> tensor<3x5xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
  return %y : tensor<3x5xf32>
}

// -----

// bf16 operands, accumulated in f32: so is the gradient, rounded at the end.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[W:.+]] = stablehlo.convert %arg1 : (tensor<4x5xbf16>) -> tensor<4x5xf32>
// CHECK: %[[G:.+]] = stablehlo.dot_general %arg2, %[[W]]
// CHECK-NEXT: stablehlo.convert %[[G]] : (tensor<3x4xf32>) -> tensor<3x4xbf16>
func.func @main(%x: tensor<3x4xbf16>, %w: tensor<4x5xbf16>) -> tensor<3x5xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x4xbf16>, tensor<4x5xbf16>) -> tensor<3x5xf32>
  return %y : tensor<3x5xf32>
}
