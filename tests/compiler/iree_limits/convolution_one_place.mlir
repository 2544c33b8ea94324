// IREE: 'linalg.generic' op inferred input/output operand
// pcp-legalize: without what no window covers
func.func @main(%x: tensor<2x2x2x3xf32>, %k: tensor<3x2x1x2xf32>) -> tensor<2x3x2x1xf32> {
  %0 = stablehlo.convolution(%x, %k)
    dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x2x2x3xf32>, tensor<3x2x1x2xf32>) -> tensor<2x3x2x1xf32>
  return %0 : tensor<2x3x2x1xf32>
}
