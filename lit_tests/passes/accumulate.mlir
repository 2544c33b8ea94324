// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --pcp-accumulate=batch=6 | filecheck %s
// RUN: not pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --pcp-accumulate=batch=5 2>&1 | filecheck %s --check-prefix=ODD
// RUN: not pcp-opt %s --pcp-accumulate=batch=6 2>&1 | filecheck %s --check-prefix=EARLY

// CHECK: func.func private @grad.piece(%arg0: tensor<4xf32> {{.*}}, %arg1: tensor<2x4xf32>
// CHECK: func.func private @eval.piece
// CHECK: func.func @grad(%arg0: tensor<4xf32> {{.*}}, %arg1: tensor<6x4xf32> {pcp.name = "x", pcp.role = "data"}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<4xf32> {pcp.name = "w", pcp.role = "grad"})
// CHECK: stablehlo.while
// CHECK: stablehlo.constant dense<3> : tensor<i32>
// CHECK: stablehlo.dynamic_slice %arg1, {{.*}}, sizes = [2, 4]
// CHECK: call @grad.piece(%arg0
// CHECK: dense<0.333333343> : tensor<f32>
// CHECK: func.func @eval
// CHECK: call @eval.piece

// ODD: a batch of 5 is no multiple of the model's, which is 2
// EARLY: has no @eval to accumulate over
func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %2 = stablehlo.multiply %1, %x : tensor<2x4xf32>
  %3 = stablehlo.reduce(%2 init: %0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, %x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data"}) -> (tensor<f32>, tensor<4xf32>) {
  %0 = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%x init: %0) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0, %1 : tensor<f32>, tensor<4xf32>
}
