// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-stage='stages=2 microbatches=2'

func.func @cycle(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x {pcp.stage = 1} : tensor<4xf32>
  // expected-error@+1 {{stage cycle: it is on stage 0 and reads a value of stage 1}}
  %1 = stablehlo.exponential %0 {pcp.stage = 0} : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

func.func @far(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error@+1 {{pcp.stage = 7, and there are 2 stages}}
  %0 = stablehlo.tanh %x {pcp.stage = 7} : tensor<4xf32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// expected-error@+1 {{has 1 ops between data and loss, too few for 2 stages; use fewer stages}}
func.func @short(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// expected-error@+1 {{a batch of 3 cannot be cut into 2 equal microbatches; choose a number that divides 3}}
func.func @odd(%x: tensor<3xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<3xf32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Sorting the batch needs all of it.
func.func @sorted(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error@+1 {{microbatches do not separate here: it needs the whole batch}}
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

func.func @twice(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{parameter w is used by two stages}}
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Neither device has room for its weight and the gradient of it.
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {memory = 96, sym_name = "d0", target = @cpu} : () -> ()
"pcp.device"() {memory = 96, sym_name = "d1", target = @cpu} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@d0, @d1], sym_name = "m"} : () -> ()
// expected-error@+1 {{does not fit: parameters, gradients and activations need about}}
func.func @big(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.tanh %0 : tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>, #pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{is to be cut along "pp"; what a stage holds can be cut along the other axes of the mesh (dp)}}
func.func @along(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data", pcp.sharding = #pcp.sharding<@m, [["pp"], []], [], []>}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<4x4xf32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>, #pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// expected-error@+1 {{a batch of 1 cannot be cut into 2 equal microbatches; choose a number that divides 1}}
func.func @few(%x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<2x4xf32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

func.func @inside_of_a_loop(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%n = %zero, %h = %x) : tensor<i32>, tensor<4x4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %c = stablehlo.compare LT, %n, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    // expected-error@+1 {{has a mark pcp.stage inside of a stablehlo.while, which runs whole on one stage; mark the stablehlo.while at}}
    %a = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %g = stablehlo.tanh %a {pcp.stage = 1} : tensor<4x4xf32>
    stablehlo.return %m, %g : tensor<i32>, tensor<4x4xf32>
  }
  %l = stablehlo.reduce(%0#1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func @around_a_loop(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %q = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{stage cycle: it is on stage 0 and reads a value of stage 1}}
  %0:2 = "stablehlo.while"(%zero, %q) ({
  ^bb0(%n: tensor<i32>, %h: tensor<4x4xf32>):
    %three = stablehlo.constant dense<3> : tensor<i32>
    %c = stablehlo.compare LT, %n, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%n: tensor<i32>, %h: tensor<4x4xf32>):
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.add %n, %one : tensor<i32>
    %g = stablehlo.tanh %h : tensor<4x4xf32>
    stablehlo.return %m, %g : tensor<i32>, tensor<4x4xf32>
  }) {pcp.stage = 0} : (tensor<i32>, tensor<4x4xf32>) -> (tensor<i32>, tensor<4x4xf32>)
  %l = stablehlo.reduce(%0#1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func private @layer(%h: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %a = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{stage cycle: it is on stage 0 and reads a value of stage 1}}
  %g = stablehlo.tanh %a {pcp.stage = 0} : tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
func.func @in_a_call(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @layer(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func private @layer(%h: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error@+1 {{stage cycle: it is on stage 0 and reads a value of stage 1}}
  %a = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = stablehlo.tanh %a {pcp.stage = 1} : tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
func.func @called_twice(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @layer(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = call @layer(%0, %v) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func private @layer(%h: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error@+1 {{stage cycle: it is on stage 0 and reads a value of stage 1}}
  %a = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = stablehlo.tanh %a : tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
func.func @marked_calls(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @layer(%x, %w) {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = call @layer(%0, %v) {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func @mark_of_a_name(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error@+1 {{pcp.stage is the number of a stage, not "one"}}
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = "one"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

// expected-error@+1 {{no op is on stage 1; mark one, or use fewer}}
func.func @nobody(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

func.func private @layer(%h: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error@+1 {{is marked pcp.stage = 1, in a function that is called with pcp.stage = 0 at}}
  %g = stablehlo.tanh %h {pcp.stage = 1} : tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
func.func @contradiction(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @layer(%x) {pcp.stage = 0} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %l = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}

// -----

// What is taken from each example is the mean of what all of them give: no microbatch
// knows it. A sum over the batch at the end is none of these.
func.func @centred(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  // expected-error@+1 {{microbatches do not separate here: it joins examples with a sum over the batch, of more than data; leave pp out of the mesh, or treat examples one by one}}
  %2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.subtract %0, %2 : tensor<4x4xf32>
  %4 = stablehlo.multiply %3, %3 : tensor<4x4xf32>
  %5 = stablehlo.reduce(%4 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %5 : tensor<f32>
}

// -----

// The last example comes first: another microbatch holds it.
func.func @shifted(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{stablehlo.reverse: microbatches do not separate here: it moves examples along the batch; leave pp out of the mesh}}
  %1 = stablehlo.reverse %0, dims = [0] : tensor<4x4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4x4xf32>
  %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %3 : tensor<f32>
}

// -----

func.func @product(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{microbatches do not separate here: it multiplies over the batch; leave pp out of the mesh}}
  %1 = stablehlo.reduce(%0 init: %one) applies stablehlo.multiply across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// expected-error@+1 {{has state 'm', which pipeline stages do not carry from one microbatch to the next; leave pp out of the mesh}}
func.func @state(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}, %m: tensor<f32> {pcp.name = "m", pcp.role = "state"}) -> (tensor<f32>, tensor<f32> {pcp.name = "m", pcp.role = "state"}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %0, %m : tensor<f32>, tensor<f32>
}

// -----

// Two pieces would each need what the other wrote.
// expected-error@+1 {{has state 'c', which pipeline stages do not carry from one microbatch to the next; leave pp out of the mesh}}
func.func @cache(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}, %c: tensor<4xf32> {pcp.name = "c", pcp.role = "state"}) -> (tensor<4xf32> {pcp.role = "result"}, tensor<4xf32> {pcp.name = "c", pcp.role = "state"}) {
  %0 = stablehlo.add %x, %c : tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  return %1, %0 : tensor<4xf32>, tensor<4xf32>
}

// -----

// expected-error@+1 {{result 0 has pcp.stage = 2, and there are 2 stages}}
func.func @elsewhere(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4xf32> {pcp.name = "w", pcp.role = "frozen"}) -> (tensor<f32> {pcp.role = "result", pcp.stage = 2 : i64}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %x, %w {pcp.stage = 0 : i64} : tensor<4xf32>
  %1 = stablehlo.tanh %0 {pcp.stage = 1 : i64} : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
