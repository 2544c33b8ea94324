// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-lower-schedule

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      // expected-error@below {{memref.alloc: not a StableHLO op; lower the model to StableHLO first, or to ops of arith, linalg, math and tensor on tensors}}
      %m = memref.alloc() : memref<4xf32>
      "pcp.yield"(%i) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %l = arith.constant 0 : index
      // expected-error@below {{scf.for: not a StableHLO op}}
      scf.for %k = %l to %l step %l { }
      "pcp.yield"(%i) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      // expected-error@below {{pcp.constraint: it says how a tensor lies on a mesh, and a task has its tensors whole}}
      %c = "pcp.constraint"(%i) {sharding = #pcp.sharding<@m, [["pp"]], [], []>} : (tensor<4xf32>) -> tensor<4xf32>
      "pcp.yield"(%c) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %o = builtin.unrealized_conversion_cast %i : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
      // expected-error@below {{pcp.task: a task runs on one device; write it beside the task, in the pcp.schedule}}
      %t = "pcp.task"(%o) ({
      ^bb0(%j: tensor<4xf32>):
        "pcp.yield"(%j) : (tensor<4xf32>) -> ()
      }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
      "pcp.yield"(%i) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func private @f(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      // expected-error@below {{func.call: @f has no blocks}}
      %t = func.call @f(%i) : (tensor<4xf32>) -> tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{@f calls itself}}
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %t = func.call @f(%i) : (tensor<4xf32>) -> tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
// expected-error@below {{func.func: it has a body, and pcp.host: the host has the body; leave one out}}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> attributes {pcp.host} {
  return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %t = func.call @f(%i) : (tensor<4xf32>) -> tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
// expected-error@below {{func.func: f32 cannot go to the host; write tensors of known shapes}}
func.func private @g() -> f32 attributes {pcp.host}
func.func private @f() attributes {pcp.host}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      func.call @f() : () -> ()
      "pcp.yield"(%i) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    // expected-error@below {{a scheduled task says its stage, microbatch, dir; one whose place is its order alone}}
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      "pcp.yield"(%i) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "gpipe", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_0>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %y : tensor<4xf32>
}
