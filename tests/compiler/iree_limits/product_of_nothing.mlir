// IREE: iree-compile died of SIGFPE
// pcp-legalize: zeros
func.func @main(%x: tensor<0x3xf32>, %y: tensor<0x4xf32>) -> tensor<3x4xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<0x3xf32>, tensor<0x4xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
