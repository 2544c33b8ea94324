// IREE: failed to legalize operation 'stablehlo.cholesky'
// pcp-legalize: a loop over panels
func.func @main(%x: tensor<3x3xf32>) -> tensor<3x3xf32> {
  %0 = stablehlo.cholesky %x, lower = true : tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}
