// IREE: failed to translate the MLIR LLVM dialect
// pcp-legalize: a slice of a reversal
func.func @main(%x: tensor<24xf32>) -> tensor<12xf32> {
  %s = stablehlo.slice %x [0:24:2] : (tensor<24xf32>) -> tensor<12xf32>
  %r = stablehlo.reverse %s, dims = [0] : tensor<12xf32>
  return %r : tensor<12xf32>
}
