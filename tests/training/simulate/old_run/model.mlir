
func.func @main(
    %table: tensor<64x64xf32>,
    %ids: tensor<4x8xi64>,
    %targets: tensor<4x8xi64>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %count = stablehlo.constant dense<32.0> : tensor<f32>
  %flat = stablehlo.reshape %ids : (tensor<4x8xi64>)
      -> tensor<32x1xi64>
  %logits = "stablehlo.gather"(%table, %flat) <{
      dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 64>}>
      : (tensor<64x64xf32>, tensor<32x1xi64>)
      -> tensor<32x64xf32>
  %max = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum
      across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>)
      -> tensor<32xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0]
      : (tensor<32xf32>) -> tensor<32x64xf32>
  %shifted = stablehlo.subtract %logits, %maxes
      : tensor<32x64xf32>
  %exp = stablehlo.exponential %shifted : tensor<32x64xf32>
  %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add
      across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>)
      -> tensor<32xf32>
  %log = stablehlo.log %sum : tensor<32xf32>
  %row = stablehlo.iota dim = 1 : tensor<32x64xi64>
  %wanted = stablehlo.reshape %targets : (tensor<4x8xi64>)
      -> tensor<32xi64>
  %wide = stablehlo.broadcast_in_dim %wanted, dims = [0]
      : (tensor<32xi64>) -> tensor<32x64xi64>
  %hit = stablehlo.compare EQ, %row, %wide
      : (tensor<32x64xi64>,
         tensor<32x64xi64>)
      -> tensor<32x64xi1>
  %mask = stablehlo.convert %hit : (tensor<32x64xi1>)
      -> tensor<32x64xf32>
  %picked = stablehlo.multiply %shifted, %mask
      : tensor<32x64xf32>
  %right = stablehlo.reduce(%picked init: %zero) applies stablehlo.add
      across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>)
      -> tensor<32xf32>
  %loss = stablehlo.subtract %log, %right : tensor<32xf32>
  %total = stablehlo.reduce(%loss init: %zero) applies stablehlo.add
      across dimensions = [0] : (tensor<32xf32>, tensor<f32>)
      -> tensor<f32>
  %mean = stablehlo.divide %total, %count : tensor<f32>
  return %mean : tensor<f32>
}
