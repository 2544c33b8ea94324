// IREE: 'tensor.collapse_shape' op expected collapsed type
// pcp-legalize: a barrier in front of the kernel
func.func public @main(%x: tensor<1x8x8x4xbf16>, %k: tensor<3x3x1x4xbf16>) -> tensor<1x6x6x4xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 4 : i64} : (tensor<1x8x8x4xbf16>, tensor<3x3x1x4xbf16>) -> tensor<1x6x6x4xf32>
  return %0 : tensor<1x6x6x4xf32>
}
