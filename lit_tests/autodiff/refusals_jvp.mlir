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
