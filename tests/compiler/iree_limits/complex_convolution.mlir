// IREE: iree-compile died of SIGSEGV
// pcp-legalize: real convolutions
func.func @main(%x: tensor<1x8x3xcomplex<f32>>, %k: tensor<3x3x4xcomplex<f32>>) -> tensor<1x8x4xcomplex<f32>> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
    window = {pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x8x3xcomplex<f32>>, tensor<3x3x4xcomplex<f32>>) -> tensor<1x8x4xcomplex<f32>>
  return %0 : tensor<1x8x4xcomplex<f32>>
}
