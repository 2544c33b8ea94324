// IREE: failed to legalize operation 'linalg.generic'
// pcp-legalize: reversed as signed integers
func.func @main(%x: tensor<24xui8>) -> tensor<24xui8> {
  %r = stablehlo.reverse %x, dims = [0] : tensor<24xui8>
  return %r : tensor<24xui8>
}
