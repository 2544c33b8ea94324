// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=decoupled{momentum=0}' --cse --canonicalize | filecheck %s

// Directions and lengths travel as one row: four numbers and one.
// CHECK: func.func @outer_step
// CHECK: %[[D:.*]] = stablehlo.subtract
// CHECK: stablehlo.abs %[[D]]
// CHECK: stablehlo.maximum
// CHECK: stablehlo.sqrt
// CHECK: "pcp.all_reduce"{{.*}} : (tensor<6xf32>) -> tensor<6xf32>
// CHECK-NOT: pcp.all_reduce
// CHECK: stablehlo.sqrt
// CHECK: return
func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0, %x : tensor<f32>, tensor<4xf32>
}
