// RUN: pcp-opt %s --pcp-batch-lookups | filecheck %s
// RUN: pcp-opt %s --pcp-batch-lookups --pcp-batch-lookups | filecheck %s

// The picking of the labels' logits, as PyTorch writes it: row i is asked for by place i.
// CHECK-LABEL: func.func @picked
// CHECK-SAME: [[X:%.*]]: tensor<8x5xf32>, [[L:%.*]]: tensor<8x1xi64>
// CHECK-NEXT: "stablehlo.gather"([[X]], [[L]])
// CHECK-SAME: collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1
// CHECK-SAME: indices_are_sorted = false
func.func @picked(%x: tensor<8x5xf32>, %labels: tensor<8x1xi64>) -> tensor<8xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi64>
  %i = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi64>, tensor<8x1xi64>) -> tensor<8x2xi64>
  %y = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>,
    indices_are_sorted = true, slice_sizes = array<i64: 1, 1>}> : (tensor<8x5xf32>, tensor<8x2xi64>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// As JAX writes it: rows below zero would count from the end. The other component comes
// first, and a third one counts along the other dimension of the indices.
// CHECK-LABEL: func.func @wrapped
// CHECK-SAME: [[X:%.*]]: tensor<5x8x3xf32>, [[L:%.*]]: tensor<8x3x1xi32>
// CHECK-NEXT: "stablehlo.gather"([[X]], [[L]])
// CHECK-SAME: collapsed_slice_dims = [0], operand_batching_dims = [1, 2], start_indices_batching_dims = [0, 1], start_index_map = [0], index_vector_dim = 2
func.func @wrapped(%x: tensor<5x8x3xf32>, %labels: tensor<8x3x1xi32>) -> tensor<8x3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<8xi32>
  %eight = stablehlo.constant dense<8> : tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %below = stablehlo.compare LT, %count, %zero : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
  %from_end = stablehlo.add %count, %eight : tensor<8xi32>
  %rows = stablehlo.select %below, %from_end, %count : tensor<8xi1>, tensor<8xi32>
  %a = stablehlo.broadcast_in_dim %rows, dims = [0] : (tensor<8xi32>) -> tensor<8x3x1xi32>
  %b = stablehlo.iota dim = 1 : tensor<8x3x1xi32>
  %i = stablehlo.concatenate %labels, %a, %b, dim = 2 : (tensor<8x3x1xi32>, tensor<8x3x1xi32>, tensor<8x3x1xi32>) -> tensor<8x3x3xi32>
  %y = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 2>,
    slice_sizes = array<i64: 1, 1, 1>}> : (tensor<5x8x3xf32>, tensor<8x3x3xi32>) -> tensor<8x3xf32>
  return %y : tensor<8x3xf32>
}

// A scatter, whose component comes in the middle of a joined one.
// CHECK-LABEL: func.func @added
// CHECK-SAME: [[X:%.*]]: tensor<8x5x4xf32>, [[L:%.*]]: tensor<8x2xi32>
// CHECK-DAG: [[A:%.*]] = stablehlo.slice [[L]] [0:8, 0:1]
// CHECK-DAG: [[B:%.*]] = stablehlo.slice [[L]] [0:8, 1:2]
// CHECK: [[I:%.*]] = stablehlo.concatenate [[A]], [[B]], dim = 1
// CHECK: "stablehlo.scatter"([[X]], [[I]]
// CHECK-SAME: inserted_window_dims = [1, 2], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1, 2], index_vector_dim = 1
func.func @added(%x: tensor<8x5x4xf32>, %labels: tensor<8x2xi32>, %u: tensor<8xf32>) -> tensor<8x5x4xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %i = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi32>, tensor<8x2xi32>) -> tensor<8x3xi32>
  %y = "stablehlo.scatter"(%x, %i, %u) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1, 2], scatter_dims_to_operand_dims = [0, 1, 2], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<8x5x4xf32>, tensor<8x3xi32>, tensor<8xf32>) -> tensor<8x5x4xf32>
  return %y : tensor<8x5x4xf32>
}

// Rows of a longer operand, rows in another order, and an index vector of which nothing
// would be left stay as they are.
// CHECK-LABEL: func.func @some_rows
// CHECK: start_index_map = [0, 1]
func.func @some_rows(%x: tensor<9x5xf32>, %labels: tensor<8x1xi64>) -> tensor<8xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi64>
  %i = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi64>, tensor<8x1xi64>) -> tensor<8x2xi64>
  %y = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 1>}> : (tensor<9x5xf32>, tensor<8x2xi64>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// CHECK-LABEL: func.func @backwards
// CHECK: start_index_map = [0, 1]
func.func @backwards(%x: tensor<8x5xf32>, %labels: tensor<8x1xi64>) -> tensor<8xf32> {
  %count = stablehlo.iota dim = 0 : tensor<8x1xi64>
  %rows = stablehlo.reverse %count, dims = [0] : tensor<8x1xi64>
  %i = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi64>, tensor<8x1xi64>) -> tensor<8x2xi64>
  %y = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 1>}> : (tensor<8x5xf32>, tensor<8x2xi64>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// CHECK-LABEL: func.func @all_rows
// CHECK: start_index_map = [0]
func.func @all_rows(%x: tensor<8x5xf32>) -> tensor<8x5xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi64>
  %y = "stablehlo.gather"(%x, %rows) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 5>}> : (tensor<8x5xf32>, tensor<8x1xi64>) -> tensor<8x5xf32>
  return %y : tensor<8x5xf32>
}
