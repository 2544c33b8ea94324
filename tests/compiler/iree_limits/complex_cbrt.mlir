// IREE: failed to legalize operation 'stablehlo.cbrt'
// pcp-legalize: stays; iree-compile's error
func.func @main(%x: tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>> {
  %0 = stablehlo.cbrt %x : tensor<3xcomplex<f32>>
  return %0 : tensor<3xcomplex<f32>>
}
