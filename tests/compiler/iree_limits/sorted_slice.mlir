// IREE: write affecting operations on global resources are restricted to workgroup distributed contexts
// pcp-legalize: a copy of the slice
func.func @main(%x: tensor<4x5x6xf32>) -> tensor<4x6xf32> {
  %row = stablehlo.slice %x [0:4, 1:2, 0:6] : (tensor<4x5x6xf32>) -> tensor<4x1x6xf32>
  %rows = stablehlo.reshape %row : (tensor<4x1x6xf32>) -> tensor<4x6xf32>
  %0 = "stablehlo.sort"(%rows) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
