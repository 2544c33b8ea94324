// IREE: undefined symbol: ceil
// pcp-legalize: written out (pcp-expand-doubles)
func.func @main(%x: tensor<5xf64>) -> tensor<5xf64> {
  %0 = stablehlo.ceil %x : tensor<5xf64>
  return %0 : tensor<5xf64>
}
