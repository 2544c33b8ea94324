// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.broadcast_in_dim %arg1, dims = [0] : (tensor<3xf32>) -> tensor<3x5xf32>
func.func @main(%x: tensor<3x5xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

// Ties are counted, and share.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[HIT:.+]] = stablehlo.compare EQ, %arg0
// CHECK: %[[MASK:.+]] = stablehlo.convert %[[HIT]]
// CHECK: %[[COUNT:.+]] = stablehlo.reduce({{.*}}) applies stablehlo.add
// CHECK: stablehlo.divide %arg1, %[[COUNT]]
// CHECK: stablehlo.multiply %[[MASK]]
func.func @main(%x: tensor<3x5xf32>) -> tensor<3xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

// The maximum of a softmax has no derivative: nothing compares or counts.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: stablehlo.compare
// CHECK: return
func.func @main(%x: tensor<3x5xf32>) -> tensor<3x5xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<3xf32>) -> tensor<3x5xf32>
  %d = stablehlo.subtract %x, %b : tensor<3x5xf32>
  %e = stablehlo.exponential %d : tensor<3x5xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>
  %t = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<3xf32>) -> tensor<3x5xf32>
  %y = stablehlo.divide %e, %t : tensor<3x5xf32>
  return %y : tensor<3x5xf32>
}
