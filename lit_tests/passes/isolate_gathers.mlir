// RUN: pcp-opt %s --pcp-isolate-gathers | filecheck %s
// RUN: pcp-opt %s --pcp-isolate-gathers --pcp-isolate-gathers | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: [[PICKED:%.*]] = "stablehlo.gather"
// CHECK-NEXT: [[BARRIER:%.*]] = stablehlo.optimization_barrier [[PICKED]] : tensor<8xf32>
// CHECK-NEXT: stablehlo.negate [[BARRIER]] : tensor<8xf32>
func.func @main(%table: tensor<16xf32>, %i: tensor<8x1xi32>) -> tensor<8xf32> {
  %0 = "stablehlo.gather"(%table, %i) <{
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1>}> : (tensor<16xf32>, tensor<8x1xi32>) -> tensor<8xf32>
  %1 = stablehlo.negate %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}
