// IREE: does not have integral number of total bytes
// pcp-legalize: stays; iree-compile's error
func.func @main(%x: tensor<3xi4>) -> tensor<3xi4> {
  %0 = stablehlo.add %x, %x : tensor<3xi4>
  return %0 : tensor<3xi4>
}
