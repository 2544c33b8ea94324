// RUN: pcp-opt %s --pcp-lower-to-runtime --split-input-file --verify-diagnostics

func.func @step(%x: tensor<4xf32>) {
  // expected-error@below {{pcp.digest: hashing has no import in the runtime; compare hashes on the host}}
  %0 = "pcp.digest"(%x) {algo = "sha256"} : (tensor<4xf32>) -> tensor<2xi64>
  return
}

// -----

func.func @step(%x: tensor<4xf32>) {
  // expected-error@below {{pcp.send: the rank of @d1 is not known: no single mesh lists it; write to as a rank}}
  "pcp.send"(%x) {channel = 3, to = @d1} : (tensor<4xf32>) -> ()
  return
}
