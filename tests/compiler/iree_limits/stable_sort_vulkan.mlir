// Target: vulkan
// IREE: 'vector.transfer_read' op with rank > 1 should be broken down
// pcp-legalize: all results held (pcp-isolate-sorts)
//
// The position decides between equal keys, and nothing reads where it went.
func.func @main(%keys: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %positions = stablehlo.iota dim = 1 : tensor<8x64xi32>
  %0:2 = "stablehlo.sort"(%keys, %positions) <{dimension = 1 : i64, is_stable = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %more = stablehlo.compare LT, %b, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %same = stablehlo.not %more : tensor<i1>
    %earlier = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %first = stablehlo.and %same, %earlier : tensor<i1>
    %1 = stablehlo.or %less, %first : tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<8x64xf32>, tensor<8x64xi32>) -> (tensor<8x64xf32>, tensor<8x64xi32>)
  return %0#0 : tensor<8x64xf32>
}
