// RUN: pcp-opt %s --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// A value that two tasks of a device read is sent once, and received by the first.
// CHECK: "pcp.mesh"() {{.*}}devices = [@m_0, @m_1]
// CHECK-LABEL: module @m_0
// CHECK: func.func @f(%[[X:.*]]: tensor<4xf32> {pcp.name = "x"}) {
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[X]]
// CHECK-NEXT: "pcp.send"(%[[T]]) {channel = 1 : i64, to = @m_1}
// CHECK-NEXT: return
// CHECK-LABEL: module @m_1
// CHECK: func.func @f() -> (tensor<4xf32> {pcp.name = "y"}) {
// CHECK-NEXT: %[[R:.*]] = "pcp.recv"() {channel = 1 : i64, source = @m_0}
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[R]]
// CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[R]], %[[N]]
// CHECK-NEXT: return %[[A]]
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<4xf32> {pcp.name = "x"}) -> (tensor<4xf32> {pcp.name = "y"}) {
  %o = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @m_0>):
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %t = stablehlo.tanh %i : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "fwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %c = "pcp.transfer"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_1>
    %d = "pcp.task"(%c) ({
    ^bb0(%i: tensor<4xf32>):
      %t = stablehlo.negate %i : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_1, dir = "fwd", microbatch = 0, stage = 1} : (!pcp.on<tensor<4xf32>, @m_1>) -> !pcp.on<tensor<4xf32>, @m_1>
    %e = "pcp.task"(%c, %d) ({
    ^bb0(%i: tensor<4xf32>, %j: tensor<4xf32>):
      %t = stablehlo.add %i, %j : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_1, dir = "bwd", microbatch = 0, stage = 1} : (!pcp.on<tensor<4xf32>, @m_1>, !pcp.on<tensor<4xf32>, @m_1>) -> !pcp.on<tensor<4xf32>, @m_1>
    "pcp.yield"(%e) : (!pcp.on<tensor<4xf32>, @m_1>) -> ()
  }) {kind = "gpipe", microbatches = 1} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_1>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_1> to tensor<4xf32>
  return %y : tensor<4xf32>
}
