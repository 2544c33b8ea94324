// RUN: pcp-opt %s --pcp-demote-indices --split-input-file --verify-diagnostics

func.func @constant(%x: tensor<3xi64>) -> tensor<3xi64> {
  // expected-error@below {{stablehlo.constant: holds an integer beyond 32 bits, and this target has no more}}
  %c = stablehlo.constant dense<4294967296> : tensor<3xi64>
  %0 = stablehlo.add %x, %c : tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----

func.func @bits(%x: tensor<3xi64>) -> tensor<3xi64> {
  // expected-error@below {{stablehlo.popcnt: needs all 64 bits of an integer, and this target has 32}}
  %0 = stablehlo.popcnt %x : tensor<3xi64>
  return %0 : tensor<3xi64>
}
