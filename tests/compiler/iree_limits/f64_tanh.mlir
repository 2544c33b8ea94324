// IREE: undefined symbol: tanh
// pcp-legalize: written out (pcp-expand-doubles)
func.func @main(%x: tensor<5xf64>) -> tensor<5xf64> {
  %0 = stablehlo.tanh %x : tensor<5xf64>
  return %0 : tensor<5xf64>
}
