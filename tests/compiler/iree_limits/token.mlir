// IREE: failed to legalize operation 'stablehlo.after_all'
// pcp-legalize: stays; iree-compile's error
func.func @main(%x: !stablehlo.token) -> !stablehlo.token {
  %0 = stablehlo.after_all %x : !stablehlo.token
  return %0 : !stablehlo.token
}
