// IREE: 'arith.constant' op attribute 'value' failed to satisfy constraint
// pcp-legalize: complex of two real constants, copied
func.func @main(%x: tensor<1xcomplex<f32>>, %i: tensor<i32>) -> tensor<4xcomplex<f32>> {
  %c = stablehlo.constant dense<(1.0, 2.0)> : tensor<4xcomplex<f32>>
  %0 = stablehlo.dynamic_update_slice %c, %x, %i : (tensor<4xcomplex<f32>>, tensor<1xcomplex<f32>>, tensor<i32>) -> tensor<4xcomplex<f32>>
  return %0 : tensor<4xcomplex<f32>>
}
