// RUN: pcp-opt %s --pcp-infer-roles --split-input-file | filecheck %s
// RUN: pcp-opt %s --pcp-infer-roles=training=false --split-input-file | filecheck %s

// A matrix, a gain, a bias, tokens; names from locations, twice the same one.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<8x4xf32> {pcp.init = "normal(0.02)", pcp.name = "wte", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.init = "ones", pcp.name = "ln", pcp.role = "param"}
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.init = "zeros", pcp.name = "ln_1", pcp.role = "param"}
// CHECK-SAME: %arg3: tensor<2xi64> {pcp.name = "arg3", pcp.role = "data"}
func.func @main(%w: tensor<8x4xf32> loc("wte"), %g: tensor<4xf32> loc("ln"), %b: tensor<4xf32> loc("ln"), %x: tensor<2xi64>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reshape %g : (tensor<4xf32>) -> tensor<1x4xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.multiply %w, %1 : tensor<8x4xf32>
  %3 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  %4 = stablehlo.add %2, %3 : tensor<8x4xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %5 : tensor<f32>
}

// -----

// Parameters are marked: a float that is not is data. What is written stays.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<4xf32> {pcp.init = "uniform(-1,1)", pcp.name = "w", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "arg1", pcp.role = "data"}
func.func @main(%w: tensor<4xf32> {pcp.role = "param", pcp.name = "w", pcp.init = "uniform(-1,1)"}, %x: tensor<4xf32>) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Data is marked: a float that is not is a parameter. A vector that is contracted
// starts as a matrix does; use is seen through calls.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<4xf32> {pcp.init = "normal(0.02)", pcp.name = "arg0", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "arg1", pcp.role = "data"}
func.func @main(%w: tensor<4xf32>, %x: tensor<4xf32> {pcp.role = "data"}) -> tensor<f32> {
  %0 = call @dot(%w, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @dot(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
