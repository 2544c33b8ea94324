// RUN: pcp-opt %s --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// What the backward task of microbatch 0 leaves is done before the next message, one
// that is sent or one that is received; what nobody makes backwards waits for nothing.
// CHECK-LABEL: module @m_0
// CHECK: "pcp.send"(%[[H:.*]]) {channel = 1
// CHECK-NOT: optimization_barrier
// CHECK: %[[G:.*]] = stablehlo.negate
// CHECK-NEXT: %[[F:.*]] = stablehlo.tanh
// CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[F]], %[[G]]
// CHECK-NEXT: "pcp.send"(%[[B]]#0) {channel = 2
// CHECK-NEXT: %[[S:.*]] = stablehlo.add %[[B]]#1,
// CHECK-NEXT: %[[C:.*]] = stablehlo.optimization_barrier {pcp.settled} %[[S]]
// CHECK-NEXT: %[[R:.*]] = "pcp.recv"() {channel = 3
// CHECK-NEXT: %[[Y:.*]] = stablehlo.multiply %[[C]], %[[R]]
// CHECK-NEXT: return %[[Y]]
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<4xf32> {pcp.name = "x"}) -> (tensor<4xf32> {pcp.name = "y"}) {
  %o = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"(%o) ({
  ^bb0(%v: !pcp.on<tensor<4xf32>, @m_0>):
    %h0 = "pcp.task"(%v) ({
    ^bb0(%i: tensor<4xf32>):
      %t = stablehlo.cosine %i : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "fwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %g0 = "pcp.task"(%h0) ({
    ^bb0(%i: tensor<4xf32>):
      %t = stablehlo.negate %i : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "bwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %h1 = "pcp.task"(%v) ({
    ^bb0(%i: tensor<4xf32>):
      %t = stablehlo.tanh %i : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "fwd", microbatch = 1, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %m0 = "pcp.transfer"(%h0) : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_1>
    %m1 = "pcp.transfer"(%h1) : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_1>
    %z = "pcp.task"(%m0, %m1) ({
    ^bb0(%i: tensor<4xf32>, %j: tensor<4xf32>):
      %t = stablehlo.subtract %i, %j : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_1, dir = "fwd", microbatch = 1, stage = 1} : (!pcp.on<tensor<4xf32>, @m_1>, !pcp.on<tensor<4xf32>, @m_1>) -> !pcp.on<tensor<4xf32>, @m_1>
    %back = "pcp.transfer"(%z) : (!pcp.on<tensor<4xf32>, @m_1>) -> !pcp.on<tensor<4xf32>, @m_0>
    %g1 = "pcp.task"(%g0, %h1) ({
    ^bb0(%i: tensor<4xf32>, %j: tensor<4xf32>):
      %t = stablehlo.add %i, %j : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "bwd", microbatch = 1, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %y = "pcp.task"(%g1, %back) ({
    ^bb0(%i: tensor<4xf32>, %j: tensor<4xf32>):
      %t = stablehlo.multiply %i, %j : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "opt", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    "pcp.yield"(%y) : (!pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "1f1b", microbatches = 2} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
  %r = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>
  return %r : tensor<4xf32>
}
