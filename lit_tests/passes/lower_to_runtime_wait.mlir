// RUN: pcp-opt %s --pcp-lower-to-runtime --allow-unregistered-dialect | filecheck %s

// A collective begins where its start stands; where it is waited for, a barrier keeps
// the work in front from being held up with the work behind.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// CHECK: func.func @step
// CHECK-NEXT: %[[R:.*]] = "util.call"(%arg0) {callee = @pcp_rt.all_reduce_0_f32_4}
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %arg0
// CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %[[R]]
// CHECK-NEXT: stablehlo.add %[[B]], %[[T]]
func.func @step(%a: tensor<4xf32>) -> tensor<4xf32> {
  %f = "pcp.start"(%a) ({
  ^bb0(%x: tensor<4xf32>):
    %r = "pcp.all_reduce"(%x) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    "pcp.yield"(%r) : (tensor<4xf32>) -> ()
  }) {channel = 0} : (tensor<4xf32>) -> !pcp.future<tensor<4xf32>>
  %t = stablehlo.tanh %a : tensor<4xf32>
  %0 = "pcp.wait"(%f) : (!pcp.future<tensor<4xf32>>) -> tensor<4xf32>
  %1 = stablehlo.add %0, %t : tensor<4xf32>
  return %1 : tensor<4xf32>
}
