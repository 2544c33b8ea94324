// IREE: internal error: jit global source initialization order invalid
// pcp-legalize: parts that are constants of their own
// Target: sm_80
func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
  %c = stablehlo.constant dense<[[(1.0, 2.0), (3.0, 4.0)], [(5.0, 6.0), (7.0, 8.0)]]> : tensor<2x2xcomplex<f32>>
  %real = stablehlo.real %c : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xf32>
  %imag = stablehlo.imag %c : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xf32>
  %sum = stablehlo.add %real, %imag : tensor<2x2xf32>
  %0 = stablehlo.dot_general %real, %x, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = stablehlo.dot_general %imag, %y, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %sum, %0, %1 : tensor<2x2xf32>, tensor<2x3xf32>, tensor<2x3xf32>
}
