// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=sparseloco' | filecheck %s
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=muloco{wire=2bit}' | filecheck %s --check-prefix=MULOCO
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=demo' | filecheck %s --check-prefix=DEMO
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=async_diloco' | filecheck %s --check-prefix=ASYNC
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=snoo' | filecheck %s --check-prefix=SNOO
// RUN: pcp-opt %s --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=sparseloco' --pcp-verify-plan --pcp-lower-to-stablehlo-collectives=elastic=3 | filecheck %s --check-prefix=THREE

// What is sent is gathered into as many rows as there are members: a share, and of the
// one tile 2 words for the places of 2 numbers, 4 levels, and a word for their values.
// CHECK: func.func @outer_init{{.*}} -> (tensor<64x2xf32> {pcp.name = "error.w", pcp.role = "private"})
// CHECK: func.func @outer_step
// CHECK-SAME: %arg2: tensor<64x2xf32> {pcp.name = "error.w", pcp.role = "private"}
// CHECK-NOT: pcp.all_reduce
// CHECK: "pcp.all_gather"({{.*}}) {axes = ["workers"], dim = 0 : i64, mesh = @workers_mesh, sizes = []} : (tensor<1x8xi32>) -> tensor<?x8xi32>
// CHECK: stablehlo.get_dimension_size
// CHECK: stablehlo.while

// 128 numbers of 2 bits, 4 levels, a share.
// MULOCO: func.func @outer_init{{.*}} -> (tensor<64x2xf32> {pcp.name = "momentum.w", pcp.role = "outer"}, tensor<64x2xf32> {pcp.name = "error.w", pcp.role = "private"})
// MULOCO: (tensor<1x13xi32>) -> tensor<?x13xi32>

// DEMO: func.func @outer_init{{.*}} -> (tensor<64x2xf32> {pcp.name = "residue.w", pcp.role = "private"})
// DEMO: func.func @grad_sync(%arg0: tensor<64x2xf32> {pcp.name = "w", pcp.role = "grad"}, %arg1: tensor<64x2xf32> {pcp.name = "residue.w", pcp.role = "private"}, %arg2: tensor<f32> {pcp.name = "tokens", pcp.role = "tokens"})
// DEMO: stablehlo.dot_general
// DEMO: "pcp.all_gather"
// DEMO: stablehlo.sign
// DEMO-NOT: func.func @outer_step

// ASYNC: func.func @outer_init{{.*}} -> (tensor<64x2xf32> {pcp.name = "delta.w", pcp.role = "private"}, tensor<f32> {pcp.name = "weight", pcp.role = "private"})
// ASYNC: func.func @outer_early(%arg0: tensor<64x2xf32> {pcp.name = "delta.w", pcp.role = "private"}, %arg1: tensor<f32> {pcp.name = "weight", pcp.role = "private"}) -> (tensor<64x2xf32> {pcp.name = "received.0", pcp.role = "received"})
// ASYNC: pcp.all_reduce
// ASYNC: func.func @outer_step
// ASYNC-NOT: pcp.all_reduce

// SNOO-NOT: pcp.mesh
// SNOO: func.func @outer_step
// SNOO-NOT: pcp.all_

// THREE: "stablehlo.all_gather"({{.*}}) <{all_gather_dim = 0 : i64, {{.*}}replica_groups = dense<{{\[\[}}0, 1, 2]]> : tensor<1x3xi64>{{.*}} : (tensor<1x8xi32>) -> tensor<3x8xi32>
// THREE: stablehlo.get_dimension_size %{{.*}}, dim = 0 : (tensor<3x8xi32>) -> tensor<i32>
func.func @main(%w: tensor<64x2xf32> {pcp.init = "zeros", pcp.name = "w", pcp.role = "param"}, %x: tensor<64x2xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<64x2xf32>, tensor<64x2xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @grad(%w: tensor<64x2xf32>, %x: tensor<64x2xf32>) -> (tensor<f32>, tensor<64x2xf32>) {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0, 1] x [0, 1] : (tensor<64x2xf32>, tensor<64x2xf32>) -> tensor<f32>
  return %0, %x : tensor<f32>, tensor<64x2xf32>
}
