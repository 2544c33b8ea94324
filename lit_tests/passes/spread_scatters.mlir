// RUN: pcp-opt %s --pcp-spread-scatters | filecheck %s
// RUN: pcp-opt %s --pcp-spread-scatters --pcp-spread-scatters | filecheck %s

// Fewer rows than updates: each row folds the updates that point to it.
// CHECK-LABEL: func.func @few
// CHECK: [[HITS:%.*]] = stablehlo.compare EQ, {{.*}} -> tensor<2x3x4xi1>
// CHECK: [[CHOSEN:%.*]] = stablehlo.select [[HITS]]
// CHECK: [[TOTAL:%.*]] = stablehlo.reduce([[CHOSEN]] {{.*}} stablehlo.add across dimensions = [1]
// CHECK: stablehlo.add %arg0, [[TOTAL]] : tensor<2x4xf32>
// CHECK-NOT: stablehlo.scatter
func.func @few(%w: tensor<2x4xf32>, %i: tensor<3x1xi32>, %u: tensor<3x4xf32>)
    -> tensor<2x4xf32> {
  %0 = "stablehlo.scatter"(%w, %i, %u) <{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) : (tensor<2x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// More rows than updates: updates that meet are folded, and written by all of them.
// CHECK-LABEL: func.func @many
// CHECK: stablehlo.compare EQ, {{.*}} -> tensor<3x3x4xi1>
// CHECK: [[TOTAL:%.*]] = stablehlo.reduce
// CHECK: [[OLD:%.*]] = "stablehlo.gather"(%arg0, %arg1)
// CHECK: [[NEW:%.*]] = stablehlo.add [[OLD]], [[TOTAL]]
// CHECK: [[HELD:%.*]] = stablehlo.optimization_barrier [[NEW]]
// CHECK: "stablehlo.scatter"(%arg0, %arg1, [[HELD]]){{.*}}unique_indices = true
func.func @many(%w: tensor<9x4xf32>, %i: tensor<3x1xi32>, %u: tensor<3x4xf32>)
    -> tensor<9x4xf32> {
  %0 = "stablehlo.scatter"(%w, %i, %u) <{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) : (tensor<9x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<9x4xf32>
  return %0 : tensor<9x4xf32>
}

// A body that overwrites has no fold.
// CHECK-LABEL: func.func @overwritten
// CHECK: "stablehlo.scatter"(%arg0, %arg1, %arg2){{.*}}unique_indices = false
func.func @overwritten(%w: tensor<9x4xf32>, %i: tensor<3x1xi32>, %u: tensor<3x4xf32>)
    -> tensor<9x4xf32> {
  %0 = "stablehlo.scatter"(%w, %i, %u) <{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      stablehlo.return %b : tensor<f32>
  }) : (tensor<9x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<9x4xf32>
  return %0 : tensor<9x4xf32>
}
