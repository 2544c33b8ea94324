// IREE: undefined symbol: fmod
// pcp-legalize: written out (pcp-expand-doubles)
func.func @main(%x: tensor<5xf64>, %y: tensor<5xf64>) -> tensor<5xf64> {
  %0 = stablehlo.remainder %x, %y : tensor<5xf64>
  return %0 : tensor<5xf64>
}
