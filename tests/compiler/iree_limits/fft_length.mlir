// IREE: failed to legalize operation 'stablehlo.fft'
// pcp-legalize: a matrix product
func.func @main(%x: tensor<3x5xcomplex<f32>>) -> tensor<3x5xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [5] : (tensor<3x5xcomplex<f32>>) -> tensor<3x5xcomplex<f32>>
  return %0 : tensor<3x5xcomplex<f32>>
}
