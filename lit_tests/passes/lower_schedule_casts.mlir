// RUN: pcp-opt %s --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// A cast that places several values places each by itself, there and back.
// CHECK-LABEL: module @m_0
// CHECK: func.func @f(%[[X:.*]]: tensor<4xf32> {pcp.name = "x"}, %[[Y:.*]]: tensor<4xf32> {pcp.name = "y"})
// CHECK: %[[A:.*]] = stablehlo.subtract %[[X]], %[[Y]]
// CHECK: %[[B:.*]] = stablehlo.negate %[[X]]
// CHECK: return %[[B]], %[[A]]
"pcp.mesh"() {axes = [#pcp.axis<"pp", 1>], devices = [], sym_name = "m"} : () -> ()
func.func @f(%x: tensor<4xf32> {pcp.name = "x"}, %y: tensor<4xf32> {pcp.name = "y"})
    -> (tensor<4xf32> {pcp.name = "b"}, tensor<4xf32> {pcp.name = "a"}) {
  %p, %q = builtin.unrealized_conversion_cast %x, %y
    : tensor<4xf32>, tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>
  %s:2 = "pcp.schedule"(%p, %q) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @m_0>, %b: !pcp.on<tensor<4xf32>, @m_0>):
    %t:2 = "pcp.task"(%a, %b) ({
    ^bb0(%i: tensor<4xf32>, %j: tensor<4xf32>):
      %0 = stablehlo.subtract %i, %j : tensor<4xf32>
      %1 = stablehlo.negate %i : tensor<4xf32>
      "pcp.yield"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> ()
    }) {device = @m_0, dir = "fwd", microbatch = 0, stage = 0}
      : (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>)
      -> (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>)
    "pcp.yield"(%t#0, %t#1) : (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>) -> ()
  }) {kind = "gpipe", microbatches = 1}
    : (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>)
    -> (!pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0>)
  %c, %d = builtin.unrealized_conversion_cast %s#0, %s#1
    : !pcp.on<tensor<4xf32>, @m_0>, !pcp.on<tensor<4xf32>, @m_0> to tensor<4xf32>, tensor<4xf32>
  return %d, %c : tensor<4xf32>, tensor<4xf32>
}
