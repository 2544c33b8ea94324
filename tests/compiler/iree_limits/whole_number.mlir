// IREE: undefined symbol: truncf
// pcp-legalize: compared with its nearest whole number
func.func @main(%x: tensor<4xf32>) -> tensor<4xi1> {
  %f = stablehlo.floor %x : tensor<4xf32>
  %c = stablehlo.compare EQ, %f, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %c : tensor<4xi1>
}
