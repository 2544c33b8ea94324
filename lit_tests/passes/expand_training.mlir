// RUN: pcp-opt %s --pcp-expand-training='optimizer=adamw{lr=0.01,clip_norm=1.0} algorithm=diloco{lr=0.5}' | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --cse --canonicalize | filecheck %s --check-prefix=SGD
// RUN: pcp-opt %s --pcp-expand-training='optimizer=nesterov algorithm=ddp' | filecheck %s --check-prefix=DDP
// RUN: pcp-opt %s --pcp-expand-training=algorithm=average | filecheck %s --check-prefix=AVERAGE
// RUN: pcp-opt %s --pcp-expand-training='algorithm=diloco{lr=0.5} expand=false' | filecheck %s --check-prefix=KEPT

// CHECK: module attributes {pcp.algorithm = "diloco{lr=0.5}", pcp.optimizer = "adamw{lr=0.01,clip_norm=1.0}"}
// CHECK: "pcp.mesh"() {axes = [#pcp.axis<"workers", -1 : i64>], devices = [], sym_name = "workers_mesh"}
// CHECK: func.func @main{{.*}} -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"})
// CHECK: func.func @grad{{.*}} -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<4xf32> {pcp.name = "w", pcp.role = "grad"})
// CHECK: func.func @init(%arg0: tensor<i64> {pcp.name = "seed", pcp.role = "seed"}) -> (tensor<4xf32> {pcp.init = "normal(0.02)", pcp.name = "w", pcp.role = "param", pcp.stream = 0 : i32}, tensor<4xf32> {pcp.init = "zeros", pcp.name = "m.w", pcp.role = "state"}, tensor<4xf32> {pcp.init = "zeros", pcp.name = "v.w", pcp.role = "state"}, tensor<i32> {pcp.init = "zeros", pcp.name = "step", pcp.role = "state"})
// CHECK: call @init.0
// CHECK: func.func private @init.0
// CHECK: func.func @apply
// CHECK-SAME: %arg0: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "w", pcp.role = "grad"}
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.name = "m.w", pcp.role = "state"}
// CHECK-SAME: %arg3: tensor<4xf32> {pcp.name = "v.w", pcp.role = "state"}
// CHECK-SAME: %arg4: tensor<i32> {pcp.name = "step", pcp.role = "state"}
// CHECK: stablehlo.exponential_minus_one
// CHECK: func.func @eval
// CHECK: call @main
// CHECK: func.func @outer_init
// CHECK-SAME: tensor<4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}
// CHECK: func.func @outer_step
// CHECK-SAME: %arg0: tensor<4xf32> {pcp.name = "w", pcp.role = "anchor"}
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}
// CHECK-SAME: %arg3: tensor<f32> {pcp.name = "tokens", pcp.role = "tokens"}
// CHECK: stablehlo.reshape %arg3 : (tensor<f32>) -> tensor<1xf32>
// CHECK: "pcp.all_reduce"{{.*}} {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<5xf32>) -> tensor<5xf32>
// CHECK: stablehlo.divide
// CHECK-NOT: pcp.all_reduce

// KEPT: func.func @apply
// KEPT: "pcp.optimizer"{{.*}}kind = "adamw"
// KEPT: func.func @outer_step
// KEPT: "pcp.outer"({{.*}}axes = ["workers"], count = 1 : i64, hyper = {lr = 5.000000e-01 : f64}, kind = "diloco", mesh = @workers_mesh}
// KEPT-NOT: pcp.all_reduce

// SGD-NOT: pcp.mesh
// SGD: func.func @apply(%[[W:.*]]: tensor<4xf32> {{.*}}, %[[G:.*]]: tensor<4xf32> {{.*}}, %[[STEP:.*]]: tensor<i32>
// SGD: %[[RATE:.*]] = stablehlo.constant dense<1.000000e-01> : tensor<f32>
// SGD: %[[NEXT:.*]] = stablehlo.add %[[STEP]], %{{.*}} : tensor<i32>
// SGD: %[[LR:.*]] = stablehlo.broadcast_in_dim %[[RATE]]
// SGD: %[[MOVE:.*]] = stablehlo.multiply %[[G]], %[[LR]]
// SGD: %[[NEW:.*]] = stablehlo.subtract %[[W]], %[[MOVE]]
// SGD: return %[[NEW]], %[[NEXT]]
// SGD-NOT: func.func @outer

// DDP: func.func @grad_sync(%arg0: tensor<4xf32> {pcp.name = "w", pcp.role = "grad"}, %arg1: tensor<f32> {pcp.name = "tokens", pcp.role = "tokens"}) -> (tensor<4xf32> {pcp.name = "w", pcp.role = "grad"})
// DDP-NOT: func.func @outer

// AVERAGE: func.func @outer_init(%{{.*}}: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}) {
// AVERAGE: func.func @outer_step
// AVERAGE-NOT: pcp.role = "outer"
func.func @main(%w: tensor<4xf32> {pcp.init = "normal(0.02)", pcp.name = "w", pcp.role = "param"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @grad(%w: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0, %x : tensor<f32>, tensor<4xf32>
}
