// IREE: failed to legalize unresolved target materialization
// pcp-legalize: combined as signed integers
func.func @main(%x: tensor<5xui32>) -> tensor<5xui32> {
  %zero = stablehlo.constant dense<0> : tensor<ui32>
  %r = "stablehlo.reduce_window"(%x, %zero) <{
      window_dimensions = array<i64: 5>,
      padding = dense<[[4, 0]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<ui32>, %b: tensor<ui32>):
    %m = stablehlo.add %a, %b : tensor<ui32>
    stablehlo.return %m : tensor<ui32>
  }) : (tensor<5xui32>, tensor<ui32>) -> tensor<5xui32>
  return %r : tensor<5xui32>
}
