// IREE: undefined symbol: __truncsfbf2
// pcp-legalize: by way of f32
func.func public @main(%x: tensor<8xi32>) -> tensor<8xbf16> {
  %0 = stablehlo.convert %x : (tensor<8xi32>) -> tensor<8xbf16>
  return %0 : tensor<8xbf16>
}
