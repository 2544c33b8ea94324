// IREE: undefined symbol: cos
// pcp-legalize: written out (pcp-expand-doubles)
func.func @main(%x: tensor<5xf64>) -> tensor<5xf64> {
  %0 = stablehlo.cosine %x : tensor<5xf64>
  return %0 : tensor<5xf64>
}
