// RUN: pcp-opt %s --pcp-lower-to-runtime | filecheck %s

// A receive waits for the send in front of it, and a send for the one before: IREE
// orders calls by their operands alone. What a receive is given is made of what that send
// gave back: zeros could be made in front of it, and a queue would wait there.
// CHECK: recv_1_f32_4 = {{.*}}operands = 2
// CHECK: func.func @step(%[[X:.*]]: tensor<4xf32>)
// CHECK: %[[S:.*]] = "util.call"(%[[X]]) {callee = @pcp_rt.send_0_f32_4}
// CHECK: %[[ONE:.*]] = stablehlo.slice %[[S]] [0:1]
// CHECK: %[[SCALAR:.*]] = stablehlo.reshape %[[ONE]]
// CHECK: %[[GIVEN:.*]] = stablehlo.broadcast_in_dim %[[SCALAR]]
// CHECK: %[[R:.*]] = "util.call"(%[[GIVEN]], %[[S]]) {callee = @pcp_rt.recv_1_f32_4}
// CHECK: "util.call"(%[[R]], %[[S]]) {callee = @pcp_rt.send_2_f32_4}
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [@d0, @d1], sym_name = "m"} : () -> ()
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  "pcp.send"(%x) {channel = 1, to = @d1} : (tensor<4xf32>) -> ()
  %0 = "pcp.recv"() {channel = 2, source = @d1} : () -> tensor<4xf32>
  "pcp.send"(%0) {channel = 3, to = @d1} : (tensor<4xf32>) -> ()
  return %0 : tensor<4xf32>
}

// What a barrier that settles holds is done before the next receive, wherever that
// stands: an element of each goes along. Not of another barrier, and not twice.
// CHECK-LABEL: func.func @later
// CHECK: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg0, %arg1, %arg2 : tensor
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[B]]#1
// CHECK: %[[E:.*]] = stablehlo.slice %[[B]]#0 [0:1, 0:1]
// CHECK-NEXT: %[[F:.*]] = stablehlo.slice %[[B]]#1 [0:1]
// CHECK-NEXT: %[[G:.*]] = stablehlo.slice %[[B]]#2 [0:0, 0:1] : (tensor<0x4xf32>) -> tensor<0x1xf32>
// CHECK: "util.call"(%{{.*}}, %[[E]], %[[F]], %[[G]], %{{.*}}) {callee = @pcp_rt.recv_4_f32_4}
// CHECK: "util.call"(%{{.*}}, %{{.*}}) {callee = @pcp_rt.recv_5_f32_4}
// CHECK: stablehlo.optimization_barrier
// CHECK: "util.call"(%{{.*}}, %{{.*}}) {callee = @pcp_rt.recv_6_f32_4}
func.func @later(%a: tensor<2x4xf32>, %b: tensor<4xf32>, %c: tensor<0x4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>, tensor<0x4xf32>) {
  "pcp.send"(%b) {channel = 4, to = @d1} : (tensor<4xf32>) -> ()
  %0:3 = stablehlo.optimization_barrier {pcp.settled} %a, %b, %c : tensor<2x4xf32>, tensor<4xf32>, tensor<0x4xf32>
  %t = stablehlo.tanh %0#1 : tensor<4xf32>
  %1 = "pcp.recv"() {channel = 5, source = @d1} : () -> tensor<4xf32>
  %2 = "pcp.recv"() {channel = 6, source = @d1} : () -> tensor<4xf32>
  %h = stablehlo.optimization_barrier %2 : tensor<4xf32>
  %3 = "pcp.recv"() {channel = 7, source = @d1} : () -> tensor<4xf32>
  return %1, %h, %3, %0#0, %t, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>, tensor<0x4xf32>
}
