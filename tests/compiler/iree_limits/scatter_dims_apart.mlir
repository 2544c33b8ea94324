// IREE: expected indices to be equal to batch rank
// pcp-legalize: indexed dims moved to the front
func.func @main(%x: tensor<5x3x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x3xf32>) -> tensor<5x3x4xf32> {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0, 2], scatter_dims_to_operand_dims = [2, 0], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<5x3x4xf32>, tensor<3x2xi32>, tensor<3x3xf32>) -> tensor<5x3x4xf32>
  return %0 : tensor<5x3x4xf32>
}
