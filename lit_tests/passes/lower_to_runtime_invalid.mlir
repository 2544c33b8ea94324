// RUN: pcp-opt %s --pcp-lower-to-runtime --split-input-file --verify-diagnostics

func.func @step(%x: tensor<4xf32>) {
  // expected-error@below {{pcp.send: the rank of @d1 is not known: no single mesh lists it; write to as a rank}}
  "pcp.send"(%x) {channel = 3, to = @d1} : (tensor<4xf32>) -> ()
  return
}
