// IREE: 'stream.async.splat' op operand #0
// pcp-legalize: complex of two real constants
func.func @main(%x: tensor<3xf32>) -> tensor<3xcomplex<f64>> {
  %0 = stablehlo.constant dense<(1.0, 2.0)> : tensor<3xcomplex<f64>>
  return %0 : tensor<3xcomplex<f64>>
}
