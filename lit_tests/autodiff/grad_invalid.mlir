// RUN: pcp-opt %s --pcp-grad --split-input-file --verify-diagnostics

// expected-error@below {{@main returns tensor<4xf32>; a gradient needs a floating-point scalar as the first result}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// expected-error@below {{@main has no floating-point input to differentiate for}}
func.func @main(%x: tensor<i32>) -> tensor<f32> {
  %y = stablehlo.convert %x : (tensor<i32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@below {{stablehlo.custom_call: no derivative rule for the custom call "foo"}}
  %y = stablehlo.custom_call @foo(%x) : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

// An op that no table knows: the error names it, the input it was reached from,
// and the page that helps.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@below {{arith.negf: no derivative rule, and a derivative flows through it (reached from input 0)}}
  %y = arith.negf %x : tensor<f32>
  return %y : tensor<f32>
}

// -----

// Off the active path the same op is no error.
func.func @main(%x: tensor<f32>, %n: tensor<i32>) -> (tensor<f32>, tensor<f32>) {
  %f = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
  %b = arith.negf %f : tensor<f32>
  %y = stablehlo.multiply %x, %b : tensor<f32>
  %unused = arith.negf %x : tensor<f32>
  return %y, %unused : tensor<f32>, tensor<f32>
}

// -----

func.func @main(%x: tensor<f32>) -> tensor<f32> {
  // expected-error@below {{func.call: @main calls itself; recursion has no inlined form and cannot be differentiated}}
  %y = call @main(%x) : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

func.func @main(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
  %r:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<f32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %c = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.subtract %i, %one : tensor<i32>
      %low = stablehlo.constant dense<0.0> : tensor<f32>
      %high = stablehlo.constant dense<1.0> : tensor<f32>
      %shape = stablehlo.constant dense<> : tensor<0xi64>
      // expected-error@below {{stablehlo.rng: the derivative of the stablehlo.while around it runs it a second time}}
      %noise = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>
      %z = stablehlo.multiply %y, %noise : tensor<f32>
      stablehlo.return %j, %z : tensor<i32>, tensor<f32>
    }
  return %r#1 : tensor<f32>
}

// -----

// One rule of each kind.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
func.func private @jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  return %x, %t : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @main, jvp = @jvp} : () -> ()
// expected-error@below {{pcp.custom_jvp: @main has one already, at}}
"pcp.custom_jvp"() {primal = @main, jvp = @jvp} : () -> ()
