// RUN: pcp-opt %s --split-input-file --verify-diagnostics

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{runs on @d1 and has an operand on @d0}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{runs on @d0 and has a result on @d1}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error@below {{has an operand that is not placed: tensor<4xf32>}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d0} : (tensor<4xf32>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{has a negative stage}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d0, stage = -1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{dir is one of fwd, bwd, wgrad, opt, not "up"}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"(%a) : (tensor<4xf32>) -> ()
  }) {device = @d0, dir = "up"} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{has a region of (tensor<8xf32>) for operands of (tensor<4xf32>)}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<8xf32>):
    "pcp.yield"(%a) : (tensor<8xf32>) -> ()
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{yields () for results of (tensor<4xf32>)}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    "pcp.yield"() : () -> ()
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{needs a region that ends in pcp.yield}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    llvm.unreachable
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>, %y: tensor<4xf32>) {
  // expected-note@below {{required by region isolation constraints}}
  %0 = "pcp.task"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    // expected-error@below {{using value defined outside the region}}
    %b = stablehlo.add %a, %y : tensor<4xf32>
    "pcp.yield"(%b) : (tensor<4xf32>) -> ()
  }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{stays on @d0}}
  %0 = "pcp.transfer"(%x) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{gives tensor<8xf32> for tensor<4xf32>; they must be equal}}
  %0 = "pcp.transfer"(%x) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<8xf32>, @d1>
  return
}

// -----

func.func @f(%x: tensor<4xf32>) {
  // expected-error@below {{moves placed tensors, not tensor<4xf32>}}
  %0 = "pcp.transfer"(%x) : (tensor<4xf32>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{kind is one of gpipe, 1f1b, zb-h1, custom, not "fifo"}}
  %0 = "pcp.schedule"(%x) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "fifo", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{cuts a batch into 0 pieces; at least 1}}
  %0 = "pcp.schedule"(%x) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "gpipe", microbatches = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{holds tasks and transfers only, not 'arith.constant'}}
  %0 = "pcp.schedule"(%x) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    %c = arith.constant 1 : i32
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{yields (!pcp.on<tensor<4xf32>, @d0>) for results of (!pcp.on<tensor<4xf32>, @d1>)}}
  %0 = "pcp.schedule"(%x) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    "pcp.yield"(%a) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
  return
}

// -----

func.func @f(%x: !pcp.on<tensor<4xf32>, @d0>) {
  // expected-error@below {{needs a region of one block}}
  %0 = "pcp.task"(%x) ({}) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return
}
