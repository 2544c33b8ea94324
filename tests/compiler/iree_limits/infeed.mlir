// IREE: failed to legalize operation 'stablehlo.infeed'
// pcp-legalize: stays; iree-compile's error
func.func @main(%x: !stablehlo.token) -> tensor<3xf32> {
  %0, %t = "stablehlo.infeed"(%x) <{infeed_config = "", layout = [[0]]}> : (!stablehlo.token) -> (tensor<3xf32>, !stablehlo.token)
  return %0 : tensor<3xf32>
}
