// Target: vulkan
// IREE: failed to legalize operation 'vector.bitcast'
// pcp-legalize: converted behind a barrier (pcp-isolate-conversions)
func.func public @main(%x: tensor<64x64xbf16>, %y: tensor<64x64xbf16>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
