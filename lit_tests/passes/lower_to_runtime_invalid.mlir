// RUN: pcp-opt %s --pcp-lower-to-runtime --split-input-file --verify-diagnostics

func.func @step(%x: tensor<4xf32>) {
  // expected-error@below {{pcp.send: the rank of @d1 is not known: no single mesh lists it; write to as a rank}}
  "pcp.send"(%x) {channel = 3, to = @d1} : (tensor<4xf32>) -> ()
  return
}

// -----

// A function that is the host's and has a body would be dropped, called or not.
// expected-error@below {{func.func: it has a body, and pcp.host: the host has the body; leave one out}}
func.func @both(%x: tensor<4xf32>) -> tensor<4xf32> attributes {pcp.host} {
  return %x : tensor<4xf32>
}
