// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=mezo{eps=0.5}' --cse --canonicalize --symbol-dce | filecheck %s
// RUN: pcp-opt %s --pcp-jvp='func=main name=jvp' --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=forward_gradient{noise=signs}' --cse --canonicalize --symbol-dce | filecheck %s --check-prefix=FORWARD
// RUN: not pcp-opt %s --pcp-expand-training=algorithm=forward_gradient 2>&1 | filecheck %s --check-prefix=MISSING

// Two forward passes, on both sides of the parameters; no gradient in sight.
// CHECK: func.func @grad(%[[W:.*]]: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}, %[[X:.*]]: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}, %{{.*}}: tensor<i64> {pcp.name = "direction", pcp.role = "direction"}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<f32> {pcp.name = "slope", pcp.role = "slope"})
// CHECK: %[[Z:.*]] = call @direction.0
// CHECK: %[[E:.*]] = stablehlo.multiply %[[Z]]
// CHECK: %[[UP:.*]] = stablehlo.add %[[W]], %[[E]]
// CHECK: %[[ABOVE:.*]] = call @main(%[[UP]], %[[X]])
// CHECK: %[[DOWN:.*]] = stablehlo.subtract %[[W]], %[[E]]
// CHECK: %[[BELOW:.*]] = call @main(%[[DOWN]], %[[X]])
// CHECK: stablehlo.subtract %[[ABOVE]], %[[BELOW]]
// CHECK: func.func private @direction.0(%{{.*}}: tensor<i32>
// Twelve bytes go out; everybody's are added up along everybody's directions.
// CHECK: func.func @grad_sync
// CHECK: "pcp.all_gather"{{.*}} : (tensor<1x4xi32>) -> tensor<?x4xi32>
// CHECK: stablehlo.while
// CHECK: func.call @direction.0

// FORWARD-NOT: @direction.1
// FORWARD: func.func @grad(
// FORWARD: %[[Z:.*]] = call @direction.0
// FORWARD: %[[L:.*]]:2 = call @jvp(%{{.*}}, %{{.*}}, %[[Z]], %{{.*}})
// FORWARD: return %[[L]]#0, %[[L]]#1

// MISSING: the module has no function @jvp; run pcp-jvp{name=jvp} first
func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
