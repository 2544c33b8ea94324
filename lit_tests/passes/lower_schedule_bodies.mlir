// RUN: pcp-opt %s --pcp-import --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// Bodies of other dialects go through as they stand, calls in them are inlined, and the
// host's functions are declared where they are called. A task of a hand-written order
// says nothing but its device, and reads placed values from around the schedule.
// CHECK-NOT: func.func private
// CHECK-LABEL: module @m_0
// CHECK-NEXT: func.func @main(%[[X:.*]]: tensor<4xf32>) {
// CHECK-NEXT: %[[E:.*]] = tensor.empty() : tensor<4xf32>
// CHECK-NEXT: %[[G:.*]] = linalg.generic
// CHECK-SAME: ins(%[[X]], %[[X]] : tensor<4xf32>, tensor<4xf32>) outs(%[[E]] : tensor<4xf32>)
// CHECK: arith.mulf
// CHECK-NEXT: linalg.yield
// CHECK: %[[M:.*]] = math.sqrt %[[G]]
// CHECK-NEXT: "pcp.send"(%[[M]])
// CHECK-NEXT: return
// CHECK-LABEL: module @m_1
// CHECK-NEXT: func.func private @shift(tensor<4xf32>) -> tensor<4xf32> attributes {pcp.host}
// CHECK-NEXT: func.func @main() -> tensor<4xf32>
// CHECK-NEXT: %[[R:.*]] = "pcp.recv"()
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[R]]
// CHECK-NEXT: %[[S:.*]] = {{.*}}call @shift(%[[N]])
// CHECK-NEXT: return %[[S]]
// CHECK-NOT: func.func private
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func private @shift(tensor<4xf32>) -> tensor<4xf32> attributes {pcp.host}
func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @once(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = func.call @shift(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @once(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
#id = affine_map<(i) -> (i)>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = builtin.unrealized_conversion_cast %x : tensor<4xf32> to !pcp.on<tensor<4xf32>, @m_0>
  %s = "pcp.schedule"() ({
    %b = "pcp.task"(%a) ({
    ^bb0(%i: tensor<4xf32>):
      %e = tensor.empty() : tensor<4xf32>
      %g = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
          ins(%i, %i : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %m = arith.mulf %p, %q : f32
        linalg.yield %m : f32
      } -> tensor<4xf32>
      %r = math.sqrt %g : tensor<4xf32>
      "pcp.yield"(%r) : (tensor<4xf32>) -> ()
    }) {device = @m_0} : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_0>
    %c = "pcp.transfer"(%b) : (!pcp.on<tensor<4xf32>, @m_0>) -> !pcp.on<tensor<4xf32>, @m_1>
    %d = "pcp.task"(%c) ({
    ^bb0(%i: tensor<4xf32>):
      %t = func.call @twice(%i) : (tensor<4xf32>) -> tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @m_1} : (!pcp.on<tensor<4xf32>, @m_1>) -> !pcp.on<tensor<4xf32>, @m_1>
    "pcp.yield"(%d) : (!pcp.on<tensor<4xf32>, @m_1>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> !pcp.on<tensor<4xf32>, @m_1>
  %y = builtin.unrealized_conversion_cast %s : !pcp.on<tensor<4xf32>, @m_1> to tensor<4xf32>
  return %y : tensor<4xf32>
}
