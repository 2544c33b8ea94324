// RUN: pcp-opt %s --pcp-lower-to-runtime | filecheck %s

// A receive waits for the send in front of it, and a send for the one before: IREE
// orders calls by their operands alone.
// CHECK: recv_1_f32_4 = {{.*}}operands = 2
// CHECK: func.func @step(%[[X:.*]]: tensor<4xf32>)
// CHECK: %[[S:.*]] = "util.call"(%[[X]]) {callee = @pcp_rt.send_0_f32_4}
// CHECK: %[[R:.*]] = "util.call"(%{{.*}}, %[[S]]) {callee = @pcp_rt.recv_1_f32_4}
// CHECK: "util.call"(%[[R]], %[[S]]) {callee = @pcp_rt.send_2_f32_4}
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@d0, @d1], sym_name = "m"} : () -> ()
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  "pcp.send"(%x) {channel = 1, to = @d1} : (tensor<4xf32>) -> ()
  %0 = "pcp.recv"() {channel = 2, source = @d1} : () -> tensor<4xf32>
  "pcp.send"(%0) {channel = 3, to = @d1} : (tensor<4xf32>) -> ()
  return %0 : tensor<4xf32>
}

// What a barrier in front of a receive holds is done by then: an element goes along.
// CHECK-LABEL: func.func @later
// CHECK: %[[B:.*]]:2 = stablehlo.optimization_barrier
// CHECK: %[[E:.*]] = stablehlo.slice %[[B]]#0 [0:1, 0:1]
// CHECK: "util.call"(%{{.*}}, %[[E]], %{{.*}}) {callee = @pcp_rt.recv_
func.func @later(%a: tensor<2x4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>) {
  "pcp.send"(%b) {channel = 4, to = @d1} : (tensor<4xf32>) -> ()
  %0:2 = stablehlo.optimization_barrier %a, %b : tensor<2x4xf32>, tensor<4xf32>
  %1 = "pcp.recv"() {channel = 5, source = @d1} : () -> tensor<4xf32>
  return %1, %0#0, %0#1 : tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>
}
