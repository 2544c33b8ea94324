// IREE: undefined symbol: atan2
// pcp-legalize: written out (pcp-expand-doubles)
func.func @main(%x: tensor<5xf64>, %y: tensor<5xf64>) -> tensor<5xf64> {
  %0 = stablehlo.atan2 %x, %y : tensor<5xf64>
  return %0 : tensor<5xf64>
}
