// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{gives tensor<4xf32> for tensor<8x4xf32>; they must be equal}}
  %0 = "pcp.stop_gradient"(%x) {} : (tensor<8x4xf32>) -> tensor<4xf32>
  return
}

// -----

// expected-error@below {{wrt has -1; arguments count from 0}}
"pcp.grad"() {fn = @f, sym_name = "g", wrt = [-1]} : () -> ()

// -----

// expected-error@below {{wrt has argument 0 twice}}
"pcp.grad"() {fn = @f, sym_name = "g", wrt = [0, 0]} : () -> ()

// -----

// expected-error@below {{attribute 'has_value' must be}}
"pcp.grad"() {fn = @f, has_value = "yes", sym_name = "g", wrt = []} : () -> ()

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{cuts a batch into 0 pieces; at least 1}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    "pcp.yield"(%a) : (tensor<2x4xf32>) -> ()
  }) {count = 0, reduce = ["sum"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{cannot cut a batch of 8 into 3 pieces}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    "pcp.yield"(%a) : (tensor<2x4xf32>) -> ()
  }) {count = 3, reduce = ["sum"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has 2 reductions for 1 results}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    "pcp.yield"(%a) : (tensor<2x4xf32>) -> ()
  }) {count = 4, reduce = ["sum", "sum"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{reduces by mean or sum, not "max"}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    "pcp.yield"(%a) : (tensor<2x4xf32>) -> ()
  }) {count = 4, reduce = ["max"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error@below {{has a region of (tensor<2x4xf32>) for operands of (tensor<4x4xf32>)}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    "pcp.yield"(%a) : (tensor<2x4xf32>) -> ()
  }) {count = 2, reduce = ["sum"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{kind is one of adamw, nesterov, sgd, not "lion"}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "lion"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{takes parameters, gradients and state: 5 operands for 1 parameters, not 3}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "adamw"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i64>>) {
  // expected-error@below {{ends in the step, a tensor<i32>, not tensor<i64>}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "sgd"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i64>>) -> tuple<tensor<4xf32>, tensor<i64>>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<8xf32>, tensor<i32>>) {
  // expected-error@below {{has a gradient of tensor<8xf32> for parameter 0 of tensor<4xf32>}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "sgd"} : (tuple<tensor<4xf32>, tensor<8xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{gives the types of its parameters, then of its state}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "nesterov"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{has zero_stage 4; stages are 0 to 3}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "sgd", zero_stage = 4} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{ends in tokens, a tensor<f32>, not tensor<i32>}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{kind is one of average, diloco, not "adam"}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "adam", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{needs at least one axis to communicate along}}
  %0 = "pcp.outer"(%t) {axes = [], count = 1, kind = "average", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{takes anchors, local parameters, state and tokens: 4 operands for 1 parameters, not 3}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{takes anchors, local parameters, state and tokens: 3 operands for 1 parameters, not 4}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "average", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{takes anchors, local parameters, state and tokens: 3 operands for 1 parameters, not 4}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, hyper = {momentum = 0.0}, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{gives the types of its anchors, then of its state}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xbf16>, tensor<f32>>) {
  // expected-error@below {{has local parameters of the types of its anchors}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "average", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xbf16>, tensor<f32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<5xf32>, tensor<f32>>) {
  // expected-error@below {{has a state of tensor<5xf32> for parameter 0 of tensor<4xf32>}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<5xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{has count 0; there is at least one parameter}}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 0, kind = "average", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<f32>) {
  // expected-error@below {{cuts batches along their first dimension; tensor<f32> has none}}
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<f32>):
    "pcp.yield"(%a) : (tensor<f32>) -> ()
  }) {count = 1, reduce = ["sum"]} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

func.func @f(%x: tuple<tensor<4xf32>, f32, tensor<i32>>) {
  // expected-error@below {{has a gradient of f32}}
  %0 = "pcp.optimizer"(%x) {count = 1, hyper = {}, kind = "sgd"} : (tuple<tensor<4xf32>, f32, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}
