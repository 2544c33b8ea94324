// Target: sm_90a
// IREE: 'func.func' op failed to distribute
// pcp-legalize: one dimension after the other
func.func @main(%w: tensor<4xf32>, %x: tensor<64x4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %rows = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<4xf32>) -> tensor<64x4xf32>
  %0 = stablehlo.add %rows, %x : tensor<64x4xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<64x4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<64x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
