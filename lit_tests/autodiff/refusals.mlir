// RUN: pcp-opt %s --pcp-vjp --split-input-file --verify-diagnostics

// What is refused by decision: each error names the op and the way out.

func.func @main(%x: tensor<4xf32>, %c: tensor<f32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  // expected-error@below {{stablehlo.reduce: a value that its body captures depends on what is differentiated; combine with it before or afterwards}}
  %y = "stablehlo.reduce"(%x, %one) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %a, %b : tensor<f32>
    %s = stablehlo.multiply %m, %c : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}

// -----

func.func @main(%x: tensor<4xf32>, %init: tensor<f32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.reduce_window: its initial value (or a value its body captures) depends on what is differentiated}}
  %y = "stablehlo.reduce_window"(%x, %init) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 3>, padding = dense<1> : tensor<1x2xi64>} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<80xf32>) -> tensor<11xf32> {
  %init = stablehlo.constant dense<1.0> : tensor<f32>
  // expected-error@below {{stablehlo.reduce_window: a body other than add, maximum and minimum over a window of more than 64 elements has no rule}}
  %y = "stablehlo.reduce_window"(%x, %init) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 70>} : (tensor<80xf32>, tensor<f32>) -> tensor<11xf32>
  return %y : tensor<11xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %i: tensor<2x1xi32>, %u: tensor<2xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.scatter: a body that does not add, subtract, multiply, take the maximum or minimum, or return the update has a derivative rule only with unique_indices = true}}
  %s = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.atan2 %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<4xf32>
  return %s : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %i: tensor<2x1xi32>, %u: tensor<2xf32>, %c: tensor<f32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.scatter: its body captures a value that depends on what is differentiated}}
  %s = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %b, %c : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<4xf32>
  return %s : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
  // expected-error@below {{stablehlo.dynamic_reshape: shapes known only at run time have no derivative rule; pcp-import makes the op static}}
  %r = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %v: tensor<f32>, %n: tensor<1xi32>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<1xi32>
  // expected-error@below {{stablehlo.dynamic_pad: shapes known only at run time have no derivative rule}}
  %r = stablehlo.dynamic_pad %x, %v, %n, %n, %zero : (tensor<4xf32>, tensor<f32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<6xf32>
  return %r : tensor<6xf32>
}

// -----

// A shape that was never given: the op's builder says so, at the op.
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  // expected-error@below {{stablehlo.tanh: its derivative rule: tensor<?xf32> has a dynamic dimension}}
  %y = stablehlo.tanh %x : tensor<?xf32>
  return %y : tensor<?xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<?xf32> {
  // expected-error@below {{stablehlo.set_dimension_size: its result has a size known only at run time; pad to a static size and mask}}
  %r = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}

// -----

// Quantized types have no cotangent; what comes back out of them is not a zero.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.uniform_quantize %x : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 0.5>>
  // expected-error@below {{stablehlo.uniform_dequantize: what was quantized depends on what is differentiated; train on the float model}}
  %1 = stablehlo.uniform_dequantize %0 : (tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %t: !stablehlo.token) -> (tensor<4xf32>, !stablehlo.token) {
  // expected-error@below {{stablehlo.send: an active value leaves the program here}}
  %u = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true} : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
  return %x, %u : tensor<4xf32>, !stablehlo.token
}

// -----

func.func @main(%x: tensor<4xf32>, %t: !stablehlo.token) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.recv: a derivative flows to what is received here and is owed to another program}}
  %r:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true} : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  %y = stablehlo.multiply %x, %r#0 : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// With pcp.stop_gradient, what is received is a constant.
func.func @main(%x: tensor<4xf32>, %t: !stablehlo.token) -> tensor<4xf32> {
  %r:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true} : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
  %c = "pcp.stop_gradient"(%r#0) : (tensor<4xf32>) -> tensor<4xf32>
  %y = stablehlo.multiply %x, %c : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{pcp.send: an active value leaves the program here}}
  "pcp.send"(%x) {channel = 1, to = 1} : (tensor<4xf32>) -> ()
  return %x : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{pcp.recv: a derivative flows to what is received here}}
  %r = "pcp.recv"() {channel = 1, source = 1} : () -> tensor<4xf32>
  %y = stablehlo.add %x, %r : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%t: tuple<tensor<4xf32>>, %x: tensor<4xf32>) -> tensor<4xf32> {
  // Not on the active path: an argument that is a tuple is never differentiated.
  %e = stablehlo.get_tuple_element %t[0] : (tuple<tensor<4xf32>>) -> tensor<4xf32>
  %y = stablehlo.add %x, %e : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>, %c: tensor<f32>) -> tensor<4xf32> {
  // expected-error@below {{chlo.scan: it has no derivative rule; write stablehlo.while}}
  %f:2 = "chlo.scan"(%x, %c) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %a, %b : tensor<f32>, tensor<f32>
  }) {dimension = 0 : i64, is_reverse = false, operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>, tensor<f32>)
  return %f#0 : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4x4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.unary_einsum: its labels repeat or hold an ellipsis; write dot_general}}
  %y = "stablehlo.unary_einsum"(%x) {einsum_config = "ii->i"} : (tensor<4x4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.all_reduce: only a body that adds or takes the maximum or minimum has a derivative rule; write all_gather and reduce}}
  %y = "stablehlo.all_reduce"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.collective_reduce: what others than the root get from it is not specified; use all_reduce}}
  %y = "stablehlo.collective_reduce"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func private @outside(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{func.call: no derivative rule for @outside, which has no body to differentiate, and a derivative flows through it (reached from input 0); give it a body, attach a rule to the symbol with pcp.custom_vjp or pcp.custom_jvp}}
  %y = call @outside(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func private @outside(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.composite: no derivative rule for @outside, which has no body to differentiate}}
  %y = stablehlo.composite "mine.f" %x {decomposition = @outside} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A type without zero and sign holds no cotangent; neither does one in which an
// overflow would be a finite number. Nothing is left out in silence.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf8E8M0FNU>
  // expected-error@below {{stablehlo.convert: a derivative flows through tensor<4xf8E8M0FNU>, but f8E8M0FNU has no zero and no sign: it can hold none; compute in a wider type, or declare the derivative zero with pcp.stop_gradient}}
  %w = stablehlo.convert %s : (tensor<4xf8E8M0FNU>) -> tensor<4xf32>
  return %w : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf4E2M1FN>
  // expected-error@below {{stablehlo.convert: a derivative flows through tensor<4xf4E2M1FN>, but f4E2M1FN has neither NaN nor infinity, so an overflow would pass for a number: it can hold none; compute in a wider type, or declare the derivative zero with pcp.stop_gradient}}
  %w = stablehlo.convert %s : (tensor<4xf4E2M1FN>) -> tensor<4xf32>
  return %w : tensor<4xf32>
}

// -----

// Straight through: behind pcp.stop_gradient the same is a constant.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf4E2M1FN>
  %q = stablehlo.convert %s : (tensor<4xf4E2M1FN>) -> tensor<4xf32>
  %e = stablehlo.subtract %q, %x : tensor<4xf32>
  %c = "pcp.stop_gradient"(%e) : (tensor<4xf32>) -> tensor<4xf32>
  %y = stablehlo.add %x, %c : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %s = stablehlo.convert %c : (tensor<4xf32>) -> tensor<4xf8E8M0FNU>
  %w = stablehlo.convert %s : (tensor<4xf8E8M0FNU>) -> tensor<4xf32>
  %y = stablehlo.multiply %x, %w : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// expected-error@below {{@main: input 1 is tensor<f6E3M2FN>, but f6E3M2FN has neither NaN nor infinity, so an overflow would pass for a number: it can hold no derivative; give the function a wider type and convert inside, or name the other inputs with wrt=}}
func.func @main(%x: tensor<f32>, %scale: tensor<f6E3M2FN>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// expected-error@below {{input 0 is tensor<f6E2M3FN>, but}}
func.func @main(%x: tensor<f6E2M3FN>) -> tensor<f6E2M3FN> {
  return %x : tensor<f6E2M3FN>
}

// -----

// A loop that carries such a type beside what is differentiated.
func.func @main(%x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %start = stablehlo.convert %one : (tensor<i32>) -> tensor<f8E8M0FNU>
  // expected-error@below {{stablehlo.while: a derivative flows through tensor<f8E8M0FNU>, but}}
  %r:3 = stablehlo.while(%i = %n, %y = %x, %z = %start) : tensor<i32>, tensor<f32>, tensor<f8E8M0FNU>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %c = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %j = stablehlo.subtract %i, %one : tensor<i32>
      %w = stablehlo.convert %z : (tensor<f8E8M0FNU>) -> tensor<f32>
      %v = stablehlo.multiply %y, %w : tensor<f32>
      %q = stablehlo.convert %v : (tensor<f32>) -> tensor<f8E8M0FNU>
      stablehlo.return %j, %v, %q : tensor<i32>, tensor<f32>, tensor<f8E8M0FNU>
    }
  return %r#1 : tensor<f32>
}

// -----

// What quantized numbers are returned as has no cotangent; a quantized input neither.
// expected-error@below {{@main has no floating-point input to differentiate for}}
func.func @main(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xf32> {
  %y = stablehlo.uniform_dequantize %x : (tensor<4x!quant.uniform<i8:f32, 0.5>>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Neither has a token, alone.
// expected-error@below {{@main has no floating-point input to differentiate for}}
func.func @main(%t: !stablehlo.token) -> !stablehlo.token {
  return %t : !stablehlo.token
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{stablehlo.custom_call: no derivative rule for the custom call "mystery"}}
  %y = stablehlo.custom_call @mystery(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A rule that stops its tangent says nothing that could be transposed.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
func.func private @f_jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // expected-error@below {{the jvp rule of @f stops a tangent}}
  %s = "pcp.stop_gradient"(%t) : (tensor<f32>) -> tensor<f32>
  return %x, %s : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()

// -----

// Nor one that stops it in a branch, where the derivative would be zero without a word.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.composite "jax.f" %x {decomposition = @f} : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
func.func private @f_jvp(%x: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %right = stablehlo.compare GT, %x, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %s = "stablehlo.if"(%right) ({
    // expected-error@below {{the jvp rule of @f stops a tangent}}
    %stopped = "pcp.stop_gradient"(%t) : (tensor<f32>) -> tensor<f32>
    stablehlo.return %stopped : tensor<f32>
  }, {
    stablehlo.return %t : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %x, %s : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()

// -----

// Tasks are not looked into: without this a gradient through them would be zero.
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @d>
  %s = "pcp.schedule"(%a) ({
  ^bb0(%b: !pcp.on<tensor<4xf32>, @d>):
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @d>) -> ()
  }) {kind = "custom", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d>) -> !pcp.on<tensor<4xf32>, @d>
  // expected-error@below {{builtin.unrealized_conversion_cast: a value is placed on a device here, taken from one, or put into a tuple; differentiate before that}}
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @d> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

#id = affine_map<(i) -> (i)>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  // expected-error@below {{linalg.generic: no derivative rule, and a derivative flows through it}}
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %0 = arith.mulf %i, %i : f32
    linalg.yield %0 : f32
  } -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Not every operand of a function need have a derivative; the others have the rule's.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %fine = func.call @f(%one, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  // expected-error@below {{func.call: @f has no derivative by its operand 0, and one flows there: it is a constant of the rule}}
  %y = func.call @f(%x, %fine) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%c: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.multiply %c, %x : tensor<f32>
  return %y : tensor<f32>
}
func.func private @f_jvp(%c: tensor<f32>, %x: tensor<f32>, %d: tensor<f32>, %t: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = stablehlo.multiply %c, %x : tensor<f32>
  %u = stablehlo.multiply %c, %t : tensor<f32>
  return %y, %u : tensor<f32>, tensor<f32>
}
"pcp.custom_jvp"() {primal = @f, jvp = @f_jvp} : () -> ()
"pcp.without_derivative"() {primal = @f, count = 1, why = "it is a constant of the rule"} : () -> ()

// -----

func.func @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
// expected-error@below {{pcp.without_derivative: count=2, but @main has 1 operands}}
"pcp.without_derivative"() {primal = @main, count = 2, why = "none"} : () -> ()
