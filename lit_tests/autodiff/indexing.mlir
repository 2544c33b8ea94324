// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// The embedding: a scatter-add at the indices as the gather reads them.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[HIGH:.+]] = stablehlo.constant dense<9> : tensor<3xi32>
// CHECK: %[[AT:.+]] = stablehlo.clamp %{{.+}}, %arg1, %[[HIGH]]
// CHECK: "stablehlo.scatter"(%{{.+}}, %[[AT]], %arg2)
// CHECK: stablehlo.add
func.func @main(%table: tensor<10x4xf32>, %ids: tensor<3xi32>) -> tensor<3x4xf32> {
  %y = "stablehlo.gather"(%table, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>} : (tensor<10x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// -----

// Constant indices that are in range need no clamp.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: stablehlo.clamp
// CHECK: "stablehlo.scatter"
func.func @main(%table: tensor<10x4xf32>) -> tensor<3x4xf32> {
  %ids = stablehlo.constant dense<[1, 9, 1]> : tensor<3xi32>
  %y = "stablehlo.gather"(%table, %ids) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>} : (tensor<10x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// -----

// CHECK-LABEL: func.func @main_vjp(
// CHECK-DAG: stablehlo.dynamic_update_slice %arg3, %{{.+}}, %arg2
// CHECK-DAG: stablehlo.dynamic_slice %arg3, %arg2, sizes = [2]
func.func @main(%x: tensor<6xf32>, %u: tensor<2xf32>, %i: tensor<i32>) -> tensor<6xf32> {
  %y = stablehlo.dynamic_update_slice %x, %u, %i : (tensor<6xf32>, tensor<2xf32>, tensor<i32>) -> tensor<6xf32>
  return %y : tensor<6xf32>
}

// -----

// The primal sort carries a counter, so the permutation is the one it used.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[N:.+]] = stablehlo.iota dim = 0 : tensor<6xi32>
// CHECK: %[[S:.+]]:2 = "stablehlo.sort"(%arg0, %[[N]])
// CHECK: %[[B:.+]]:2 = "stablehlo.sort"(%[[S]]#1, %arg1)
// CHECK: return %[[S]]#0, %[[B]]#1
func.func @main(%x: tensor<6xf32>) -> tensor<6xf32> {
  %y = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<6xf32>) -> tensor<6xf32>
  return %y : tensor<6xf32>
}
