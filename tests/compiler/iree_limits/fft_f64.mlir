// IREE: 'arith.mulf' op requires the same type
// pcp-legalize: a matrix product
func.func @main(%x: tensor<3x8xcomplex<f64>>) -> tensor<3x8xcomplex<f64>> {
  %0 = stablehlo.fft %x, type = FFT, length = [8] : (tensor<3x8xcomplex<f64>>) -> tensor<3x8xcomplex<f64>>
  return %0 : tensor<3x8xcomplex<f64>>
}
