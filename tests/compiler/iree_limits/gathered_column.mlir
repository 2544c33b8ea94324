// IREE: failed to translate the MLIR LLVM dialect
// pcp-legalize: a copy of the column
func.func @main(%x: tensor<4x5x6xf32>, %i: tensor<7x1xi32>) -> tensor<7x5xf32> {
  %column = stablehlo.slice %x [0:4, 0:5, 2:3] : (tensor<4x5x6xf32>) -> tensor<4x5x1xf32>
  %table = stablehlo.reshape %column : (tensor<4x5x1xf32>) -> tensor<4x5xf32>
  %0 = "stablehlo.gather"(%table, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 5>
  }> : (tensor<4x5xf32>, tensor<7x1xi32>) -> tensor<7x5xf32>
  return %0 : tensor<7x5xf32>
}
