// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=noloco' --cse --canonicalize | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=eager{momentum=0}' --cse --canonicalize | filecheck %s --check-prefix=EAGER

// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"pair", -1 : i64>], devices = [], sym_name = "pair_mesh"}
// Parameters are one's own: anchors are replicas. All agree on the number of rounds.
// CHECK: func.func @outer_step
// CHECK-SAME: %[[PHI:.*]]: tensor<4xf32> {pcp.name = "w", pcp.role = "replica"}, %[[THETA:.*]]: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, %[[V:.*]]: tensor<4xf32> {pcp.name = "velocity.w", pcp.role = "private"}, %[[R:.*]]: tensor<i32> {pcp.name = "rounds", pcp.role = "outer"}
// CHECK: %[[MOVE:.*]] = stablehlo.subtract %[[THETA]], %[[PHI]]
// CHECK: %[[N:.*]] = "pcp.all_reduce"{{.*}} {axes = ["pair"], kind = "sum", mesh = @pair_mesh} : (tensor<f32>) -> tensor<f32>
// CHECK: stablehlo.divide %{{.*}}, %[[N]]
// CHECK: %[[ROW:.*]] = stablehlo.concatenate %[[MOVE]], %[[PHI]]
// CHECK: "pcp.all_reduce"(%[[ROW]]) {axes = ["pair"], kind = "sum", mesh = @pair_mesh} : (tensor<8xf32>) -> tensor<8xf32>
// CHECK: stablehlo.add %[[R]], %{{.*}} : tensor<i32>
// CHECK-NOT: pcp.all_reduce

// The mean of what is in flight is exchanged beside the inner steps; the step itself
// exchanges a scalar.
// EAGER: func.func @outer_early(%{{.*}}: tensor<4xf32> {pcp.name = "delta.w", pcp.role = "private"}, %{{.*}}: tensor<f32> {pcp.name = "weight", pcp.role = "private"}
// EAGER: "pcp.all_reduce"{{.*}} : (tensor<f32>) -> tensor<f32>
// EAGER: "pcp.all_reduce"{{.*}} : (tensor<4xf32>) -> tensor<4xf32>
// EAGER: func.func @outer_step
// EAGER-SAME: tensor<4xf32> {pcp.name = "w", pcp.role = "replica"}
// EAGER: "pcp.all_reduce"{{.*}} {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<f32>) -> tensor<f32>
// EAGER-NOT: (tensor<4xf32>) -> tensor<4xf32>
func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0, %x : tensor<f32>, tensor<4xf32>
}
