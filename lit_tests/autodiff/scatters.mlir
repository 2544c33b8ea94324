// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// Two operands in one scatter are two scatters.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: "stablehlo.scatter"(%arg0, %arg2, %arg3)
// CHECK: stablehlo.add
// CHECK: "stablehlo.scatter"(%arg1, %arg2, %arg4)
// CHECK: stablehlo.subtract
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<2x1xi32>, %u: tensor<2xf32>, %v: tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %s:2 = "stablehlo.scatter"(%x, %y, %i, %u, %v) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
    %m = stablehlo.add %a, %c : tensor<f32>
    %n = stablehlo.subtract %b, %d : tensor<f32>
    stablehlo.return %m, %n : tensor<f32>, tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4xf32>, tensor<4xf32>, tensor<2x1xi32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %s#0, %s#1 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Factors of one place are sorted together; nothing is divided.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: stablehlo.divide
// CHECK: "stablehlo.sort"
// CHECK: "stablehlo.sort"
func.func @main(%x: tensor<4xf32>, %i: tensor<2x1xi32>, %u: tensor<2xf32>) -> tensor<4xf32> {
  %s = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<4xf32>
  return %s : tensor<4xf32>
}
