// IREE: region branch point has 4 operands, but region successor needs 6 inputs
// pcp-legalize: tied to what the step was given
func.func @main(%x: tensor<2x3xf32>, %v: tensor<3xf32>) -> (tensor<3xf32>, tensor<2x3xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<3xf32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %one, %a = %v, %b = %x) : tensor<i32>, tensor<3xf32>, tensor<2x3xf32>
  cond {
    %c = stablehlo.compare GE, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.subtract %i, %one : tensor<i32>
    %s = stablehlo.dynamic_slice %b, %i, %zero, sizes = [1, 3] : (tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
    %t = stablehlo.reshape %s : (tensor<1x3xf32>) -> tensor<3xf32>
    %p = stablehlo.multiply %t, %a : tensor<3xf32>
    %q = stablehlo.reshape %p : (tensor<3xf32>) -> tensor<1x3xf32>
    %u = stablehlo.dynamic_update_slice %b, %q, %i, %zero : (tensor<2x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    stablehlo.return %j, %zeros, %u : tensor<i32>, tensor<3xf32>, tensor<2x3xf32>
  }
  return %r#1, %r#2 : tensor<3xf32>, tensor<2x3xf32>
}
