// IREE: expected indices to be equal to batch rank
// pcp-legalize: element by element along the dim
func.func @main(%x: tensor<5x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x2xf32>) -> tensor<5x4xf32> {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<5x4xf32>, tensor<3x2xi32>, tensor<3x2xf32>) -> tensor<5x4xf32>
  return %0 : tensor<5x4xf32>
}
