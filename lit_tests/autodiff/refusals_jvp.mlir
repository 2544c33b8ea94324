// RUN: pcp-opt %s --pcp-jvp --split-input-file --verify-diagnostics

// Forward mode refuses where a tangent arrives, whatever the op's results are.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.uniform_quantize: rounding to a quantized type has no useful derivative; train on the float model}}
  %0 = stablehlo.uniform_quantize %x : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 0.5>>
  %1 = stablehlo.uniform_dequantize %0 : (tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{pcp.send: an active value leaves the program here}}
  "pcp.send"(%x) {channel = 1, to = 1} : (tensor<4xf32>) -> ()
  return %x : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
  // expected-error@below {{stablehlo.dynamic_reshape: shapes known only at run time have no derivative rule}}
  %r = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}

// -----

// What is received has a tangent in the program that sends it.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{pcp.recv: a derivative flows to what is received here}}
  %r = "pcp.recv"() {channel = 1, source = 1} : () -> tensor<4xf32>
  %y = stablehlo.add %x, %r : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = "pcp.recv"() {channel = 1, source = 1} : () -> tensor<4xf32>
  %c = "pcp.stop_gradient"(%r) : (tensor<4xf32>) -> tensor<4xf32>
  %y = stablehlo.add %x, %c : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func private @outside(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{func.call: no derivative rule for @outside, which has no body to differentiate}}
  %y = call @outside(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.convert: a derivative flows through tensor<4xf8E8M0FNU>, but f8E8M0FNU has no zero and no sign: it can hold none; compute in a wider type, or declare the derivative zero with pcp.stop_gradient}}
  %s = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf8E8M0FNU>
  %w = stablehlo.convert %s : (tensor<4xf8E8M0FNU>) -> tensor<4xf32>
  return %w : tensor<4xf32>
}

// -----

// A shape that was never given.
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error@below {{stablehlo.tanh: its derivative rule: tensor<?xf32> has a dynamic dimension}}
  %y = stablehlo.tanh %x : tensor<?xf32>
  return %y : tensor<?xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.custom_call: no derivative rule for the custom call "mystery"}}
  %y = stablehlo.custom_call @mystery(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
