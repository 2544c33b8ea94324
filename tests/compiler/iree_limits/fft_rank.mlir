// IREE: failed to legalize operation 'stablehlo.fft'
// pcp-legalize: dim by dim
func.func @main(%x: tensor<4x4x4xcomplex<f32>>) -> tensor<4x4x4xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [4, 4, 4] : (tensor<4x4x4xcomplex<f32>>) -> tensor<4x4x4xcomplex<f32>>
  return %0 : tensor<4x4x4xcomplex<f32>>
}
