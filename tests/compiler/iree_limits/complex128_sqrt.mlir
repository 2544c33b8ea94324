// IREE: undefined symbol: atan2
// pcp-legalize: written out by parts
func.func @main(%x: tensor<4xcomplex<f64>>) -> tensor<4xcomplex<f64>> {
  %0 = stablehlo.sqrt %x : tensor<4xcomplex<f64>>
  return %0 : tensor<4xcomplex<f64>>
}
