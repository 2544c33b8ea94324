// IREE: 'func.func' op exceeded stack allocation limit of 32768 bytes for function
// pcp-legalize: a barrier between (pcp-isolate-conversions)
func.func public @main(%t: tensor<64x128xf32>, %i: tensor<256x1xi32>, %u: tensor<256x128xbf16>) -> tensor<64x128xf32> {
  %0 = stablehlo.convert %u : (tensor<256x128xbf16>) -> tensor<256x128xf32>
  %1 = "stablehlo.scatter"(%t, %i, %0) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<64x128xf32>, tensor<256x1xi32>, tensor<256x128xf32>) -> tensor<64x128xf32>
  return %1 : tensor<64x128xf32>
}
