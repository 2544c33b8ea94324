// Target: vulkan
// IREE: failed to legalize unresolved target materialization
// pcp-legalize: a matrix product (pcp-unfold-transforms)
func.func @main(%x: tensor<3x8xf32>) -> tensor<3x5xf32> {
  %0 = stablehlo.fft %x, type = RFFT, length = [8] : (tensor<3x8xf32>) -> tensor<3x5xcomplex<f32>>
  %1 = stablehlo.real %0 : (tensor<3x5xcomplex<f32>>) -> tensor<3x5xf32>
  return %1 : tensor<3x5xf32>
}
