// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=async_local_sgd{lr=0.5,momentum=0.75,period=3}' --cse --canonicalize | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=async_local_sgd{momentum=0,period=3}' --cse --canonicalize | filecheck %s --check-prefix=PLAIN

// The slots: momentum and buffer of each parameter, and one count.
// CHECK: func.func @outer_init
// CHECK-SAME: -> (tensor<4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}, tensor<4xf32> {pcp.name = "buffer.w", pcp.role = "outer"}, tensor<i32> {pcp.name = "pushes", pcp.role = "outer"})

// What was pushed and how many pushed; a third of it at once, the momentum at the third.
// CHECK: func.func @outer_step(%[[NEW:[a-z0-9]+]]: tensor<4xf32> {pcp.name = "w", pcp.role = "anchor"}, %[[OWN:[a-z0-9]+]]: tensor<4xf32>
// CHECK-DAG: %[[BETA:.*]] = stablehlo.constant dense<7.500000e-01> : tensor<4xf32>
// CHECK-DAG: %[[THIRD:.*]] = stablehlo.constant dense<0.333333343> : tensor<4xf32>
// CHECK-DAG: %[[N:.*]] = stablehlo.constant dense<3> : tensor<i32>
// CHECK: %[[D:.*]] = stablehlo.subtract %[[NEW]], %[[OWN]]
// CHECK: %[[G:.*]] = "pcp.all_reduce"(%[[D]]){{.*}} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: %[[PART:.*]] = stablehlo.multiply %[[G]], %[[THIRD]]
// CHECK: "pcp.all_reduce"{{.*}} : (tensor<i32>) -> tensor<i32>
// CHECK: %[[COUNT:.*]] = stablehlo.add
// CHECK: %[[DUE:.*]] = stablehlo.compare{{ +}}GE, %[[COUNT]], %[[N]], SIGNED
// CHECK: %[[B:.*]] = stablehlo.add %{{.*}}, %[[G]]
// CHECK: %[[MEAN:.*]] = stablehlo.divide %[[B]]
// CHECK: %[[KEPT:.*]] = stablehlo.multiply %{{.*}}, %[[BETA]]
// CHECK: %[[M:.*]] = stablehlo.add %[[KEPT]], %[[MEAN]]
// CHECK: %[[AHEAD:.*]] = stablehlo.multiply %[[M]], %[[BETA]]
// CHECK: %[[BOTH:.*]] = stablehlo.add %[[PART]], %[[AHEAD]]
// CHECK: stablehlo.select %[[DUE]], %[[BOTH]], %[[PART]]
// CHECK: stablehlo.select %[[DUE]], %[[M]]
// CHECK: return

// Without momentum there is nothing to keep, nor to count.
// PLAIN: func.func @outer_init
// PLAIN-NOT: pcp.role = "outer"
// PLAIN: func.func @outer_step
// PLAIN: "pcp.all_reduce"{{.*}} : (tensor<4xf32>) -> tensor<4xf32>
// PLAIN-NOT: pcp.all_reduce
// PLAIN-NOT: stablehlo.select
// PLAIN: return
func.func @main(%w: tensor<4xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0, %x : tensor<f32>, tensor<4xf32>
}
