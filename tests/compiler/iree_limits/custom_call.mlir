// IREE: failed to legalize operation 'stablehlo.custom_call'
// pcp-legalize: an error: write it in StableHLO ops
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.custom_call @f(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
