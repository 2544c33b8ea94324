// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=streaming_diloco{fragments=2,alpha=0.25}' --cse --canonicalize | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=streaming_diloco{fragments=1,alpha=0,wire=f32,momentum=0}' --cse --canonicalize | filecheck %s --check-prefix=PLAIN

// CHECK: module attributes {pcp.algorithm = "streaming_diloco{fragments=2,alpha=0.25}"
// CHECK: func.func @outer_init
// CHECK-SAME: tensor<4xf32> {pcp.name = "momentum.h.0.w", pcp.role = "outer"}, tensor<2xf32> {pcp.name = "momentum.h.1.w", pcp.role = "outer"}
// Fragment 0 has layer 0; nothing of layer 1 is among its arguments.
// CHECK: func.func @outer_send_0(%[[A:.*]]: tensor<4xf32> {pcp.name = "h.0.w", pcp.role = "anchor"}, %[[P:.*]]: tensor<4xf32> {pcp.name = "h.0.w", pcp.role = "param"}) -> (tensor<4xf32> {pcp.name = "sent.0", pcp.role = "sent"}) {
// CHECK-NEXT: %[[D:.*]] = stablehlo.subtract %[[A]], %[[P]]
// CHECK-NEXT: return %[[D]]
// CHECK: func.func @outer_exchange_0(%{{.*}}: tensor<4xf32> {pcp.name = "sent.0", pcp.role = "sent"}, %[[T:.*]]: tensor<f32> {pcp.name = "tokens", pcp.role = "tokens"}) -> (tensor<4xf32> {pcp.name = "received.0", pcp.role = "received"})
// CHECK: "pcp.all_reduce"(%[[T]]) {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<f32>) -> tensor<f32>
// CHECK: "pcp.all_reduce"{{.*}} {axes = ["workers"], codec = "e3m0", kind = "sum", mesh = @workers_mesh} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: func.func @outer_apply_0(
// CHECK-SAME: pcp.name = "h.0.w", pcp.role = "anchor"}
// CHECK-SAME: pcp.name = "h.0.w", pcp.role = "param"}
// CHECK-SAME: pcp.name = "momentum.h.0.w", pcp.role = "outer"}
// CHECK-SAME: pcp.name = "received.0", pcp.role = "received"}
// CHECK-SAME: -> (tensor<4xf32> {pcp.name = "h.0.w", pcp.role = "anchor"}, tensor<4xf32> {pcp.name = "h.0.w", pcp.role = "param"}, tensor<4xf32> {pcp.name = "momentum.h.0.w", pcp.role = "outer"})
// CHECK-NOT: pcp.all_reduce
// CHECK: func.func @outer_send_1({{.*}}: tensor<2xf32> {pcp.name = "h.1.w", pcp.role = "anchor"}
// CHECK: func.func @outer_exchange_1
// CHECK: codec = "e3m0"
// CHECK: func.func @outer_apply_1
// CHECK-NOT: outer_step

// Without momentum there is no state; both parameters travel as one, uncoded; and
// with alpha=0 the new parameters are the worker's too.
// PLAIN: func.func @outer_exchange_0
// PLAIN: "pcp.all_reduce"{{.*}} {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<7xf32>) -> tensor<7xf32>
// PLAIN: func.func @outer_apply_0
// PLAIN-NOT: "momentum
// PLAIN: return %[[N0:.*]], %[[N1:.*]], %[[N0]], %[[N1]] : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>, tensor<2xf32>
// PLAIN-NOT: outer_send_1

func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "h.0.w", pcp.role = "param"}, %v: tensor<2xf32> {pcp.init = "zeros", pcp.name = "h.1.w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}, %y: tensor<2xf32> {pcp.name = "y", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %1 = stablehlo.dot_general %v, %y, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  %2 = stablehlo.add %0, %1 : tensor<f32>
  return %2 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32>, %v: tensor<2xf32>, %x: tensor<4xf32>, %y: tensor<2xf32>) -> (tensor<f32>, tensor<4xf32>, tensor<2xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %1 = stablehlo.dot_general %v, %y, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  %2 = stablehlo.add %0, %1 : tensor<f32>
  return %2, %x, %y : tensor<f32>, tensor<4xf32>, tensor<2xf32>
}
