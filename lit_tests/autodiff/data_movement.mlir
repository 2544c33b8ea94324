// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// Dimensions of size one are dropped by a reshape, others summed.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[S:.+]] = stablehlo.reduce(%arg1 init: %{{.+}}) applies stablehlo.add across dimensions = [0, 3]
// CHECK-NEXT: return %{{.+}}, %[[S]] : tensor<2x4x1x3xf32>, tensor<4x1xf32>
func.func @main(%x: tensor<4x1xf32>) -> tensor<2x4x1x3xf32> {
  %y = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<4x1xf32>) -> tensor<2x4x1x3xf32>
  return %y : tensor<2x4x1x3xf32>
}

// -----

// A strided slice pads back with the stride between, up to the operand's end.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.pad %arg1, %{{.+}}, low = [1], high = [2], interior = [1] : (tensor<2xf32>, tensor<f32>) -> tensor<6xf32>
func.func @main(%x: tensor<6xf32>) -> tensor<2xf32> {
  %y = stablehlo.slice %x [1:5:2] : (tensor<6xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.slice %arg2 [0:2]
// CHECK: stablehlo.slice %arg2 [2:5]
func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<5xf32> {
  %z = stablehlo.concatenate %x, %y, dim = 0 : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
  return %z : tensor<5xf32>
}
