// RUN: pcp-opt %s --split-input-file --pcp-stage='stages=2 microbatches=2' | filecheck %s
// RUN: pcp-opt %s --split-input-file --pcp-stage='stages=2 microbatches=2' --pcp-schedule='kind=gpipe' --pcp-lower-schedule --pcp-verify-plan | filecheck %s --check-prefix=DEVICES

// Marks cut the loss; each microbatch sums its part, without weights.
// CHECK-LABEL: func.func @loss
// CHECK: "pcp.schedule"
// CHECK: "pcp.task"
// CHECK: stablehlo.slice %{{.*}} [0:2, 0:4]
// CHECK-NEXT: stablehlo.tanh
// CHECK: device = @mesh_0, dir = "fwd", microbatch = 0 : i64, stage = 0 : i64
// CHECK-NEXT: "pcp.transfer"
// CHECK: "pcp.task"
// CHECK: stablehlo.reduce
// CHECK: device = @mesh_1, dir = "fwd", microbatch = 0 : i64, stage = 1 : i64
// CHECK: stablehlo.slice %{{.*}} [2:4, 0:4]
// CHECK: microbatch = 1 : i64, stage = 0 : i64
// CHECK: stablehlo.reduce
// CHECK: stablehlo.add %{{.*}} : tensor<f32>
// CHECK-NEXT: "pcp.yield"
// CHECK: {kind = "custom", microbatches = 2 : i64}
// CHECK-NOT: pcp.stage

// DEVICES-LABEL: module @mesh_0
// DEVICES: func.func @loss(%{{.*}}: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) {
// DEVICES: "pcp.send"(%{{.*}}) {channel = 1 : i64, to = @mesh_1}
// DEVICES: "pcp.send"(%{{.*}}) {channel = 2 : i64, to = @mesh_1}
// DEVICES-NEXT: return
// DEVICES-LABEL: module @mesh_1
// DEVICES: func.func @loss() -> (tensor<f32> {pcp.name = "loss"}) {
// DEVICES: "pcp.recv"() {channel = 1 : i64, source = @mesh_0}
// DEVICES: "pcp.recv"() {channel = 2 : i64, source = @mesh_0}
func.func @loss(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<4x4xf32>
  %1 = stablehlo.exponential %0 {pcp.stage = 1} : tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// What needs the sum over all microbatches runs once, behind it.
// CHECK-LABEL: func.func @root
// CHECK: dir = "fwd", microbatch = 1 : i64, stage = 1 : i64
// CHECK: "pcp.task"
// CHECK: stablehlo.sqrt
// CHECK: dir = "opt", microbatch = 0 : i64, stage = 1 : i64
// DEVICES-LABEL: module @mesh_0
// DEVICES: func.func @root
// DEVICES-LABEL: module @mesh_1
// DEVICES: stablehlo.sqrt
func.func @root(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.tanh %x : tensor<4x4xf32>
  %1 = stablehlo.exponential %0 : tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.sqrt %2 : tensor<f32>
  return %3 : tensor<f32>
}

// -----

// The gradient of a weight waits for nobody: it is a task of its own.
// CHECK-LABEL: func.func @grad
// CHECK: dir = "bwd", microbatch = 0 : i64, stage = 1 : i64
// CHECK: dir = "wgrad", microbatch = 0 : i64, stage = 1 : i64
// CHECK: dir = "bwd", microbatch = 0 : i64, stage = 0 : i64
// CHECK-NOT: dir = "wgrad", microbatch = {{[01]}} : i64, stage = 0
// DEVICES-LABEL: module @mesh_0
// DEVICES: -> (tensor<4x4xf32> {pcp.name = "w", pcp.role = "grad"})
// DEVICES-LABEL: module @mesh_1
// DEVICES: -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<4x4xf32> {pcp.name = "v", pcp.role = "grad"})
func.func @grad(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}) -> (tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<4x4xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %0, %v, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.multiply %1, %1 : tensor<4x4xf32>
  %2 = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.add %1, %1 : tensor<4x4xf32>
  %4 = stablehlo.dot_general %0, %3, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = stablehlo.dot_general %3, %v, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2, %6, %4 : tensor<f32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A call's mark is that of all that it stands for.
// DEVICES-LABEL: module @mesh_0
// DEVICES: stablehlo.tanh
// DEVICES-NEXT: stablehlo.negate
// DEVICES-NEXT: "pcp.send"
// DEVICES-LABEL: module @mesh_1
// DEVICES: "pcp.recv"
// DEVICES-NEXT: stablehlo.tanh
// DEVICES-NEXT: stablehlo.negate
func.func private @layer(%h: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.tanh %h : tensor<4x4xf32>
  %1 = stablehlo.negate %0 : tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
func.func @calls(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @layer(%x) {pcp.stage = 0} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = call @layer(%0) {pcp.stage = 1} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// A mean over what counts: the count is made of data alone, all of it, in every task that
// reads it, and nothing waits for the last microbatch.
// DEVICES-LABEL: module @mesh_0
// DEVICES: func.func @counted(%{{.*}}: tensor<4x4xf32> {{.*}}, [[K:%.*]]: tensor<4xf32> {{.*}}, %{{.*}}: tensor<4x4xf32>
// DEVICES: "pcp.send"(%{{.*}}) {channel = 2 : i64, to = @mesh_1}
// DEVICES: stablehlo.slice [[K]] [0:2]
// DEVICES: [[N:%.*]] = stablehlo.reduce([[K]] init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
// DEVICES-NEXT: stablehlo.broadcast_in_dim [[N]], dims = [] : (tensor<f32>) -> tensor<2xf32>
// DEVICES: stablehlo.slice [[K]] [2:4]
// DEVICES: stablehlo.reduce([[K]] init: %{{.*}})
// DEVICES: stablehlo.add %{{.*}}, %{{.*}} : tensor<4x4xf32>
// DEVICES-NEXT: return
// DEVICES-LABEL: module @mesh_1
// DEVICES: [[S:%.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<f32>
// DEVICES: [[N:%.*]] = stablehlo.reduce(%arg0 init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
// DEVICES-NEXT: stablehlo.divide [[S]], [[N]]
// CHECK-LABEL: func.func @counted
// CHECK: dir = "bwd", microbatch = 1 : i64, stage = 0 : i64
func.func @counted(%x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}, %k: tensor<4xf32> {pcp.name = "k", pcp.role = "data"}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> (tensor<f32>, tensor<4x4xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = stablehlo.reduce(%h init: %z) applies stablehlo.add across dimensions = [1] {pcp.stage = 1} : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %m = stablehlo.multiply %r, %k : tensor<4xf32>
  %s = stablehlo.reduce(%m init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %n = stablehlo.reduce(%k init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %l = stablehlo.divide %s, %n : tensor<f32>
  %e = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %d = stablehlo.divide %k, %e : tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %d, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
  %g = stablehlo.dot_general %x, %b, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %l, %g : tensor<f32>, tensor<4x4xf32>
}

// -----

// A loop weighs as much as its four rounds, also one that counts down: the first stage
// is that loop, the second the four products behind it.
// CHECK-LABEL: func.func @round_by_round
// CHECK: stablehlo.while
// CHECK: stablehlo.dot_general
// CHECK-NOT: stablehlo.dot_general
// CHECK: device = @mesh_0, dir = "fwd", microbatch = 0 : i64, stage = 0 : i64
// CHECK-COUNT-4: stablehlo.dot_general
// CHECK: device = @mesh_1, dir = "fwd", microbatch = 0 : i64, stage = 1 : i64
// DEVICES-LABEL: module @mesh_0
// DEVICES: func.func @round_by_round(%{{.*}}: tensor<64x64xf32> {pcp.name = "w", pcp.role = "param"}, %{{.*}}: tensor<8x64xf32>
// DEVICES-LABEL: module @mesh_1
// DEVICES: func.func @round_by_round(%{{.*}} {pcp.name = "v0", pcp.role = "param"}, {{.*}} {pcp.name = "v3", pcp.role = "param"}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"})
func.func @round_by_round(%w: tensor<64x64xf32> {pcp.role = "param", pcp.name = "w"}, %v0: tensor<64x64xf32> {pcp.role = "param", pcp.name = "v0"}, %v1: tensor<64x64xf32> {pcp.role = "param", pcp.name = "v1"}, %v2: tensor<64x64xf32> {pcp.role = "param", pcp.name = "v2"}, %v3: tensor<64x64xf32> {pcp.role = "param", pcp.name = "v3"}, %x: tensor<8x64xf32> {pcp.role = "data", pcp.name = "x"}) -> (tensor<f32> {pcp.role = "loss"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %last = stablehlo.constant dense<3> : tensor<i32>
  %loop:2 = stablehlo.while(%i = %last, %y = %x) : tensor<i32>, tensor<8x64xf32>
   cond {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %more = stablehlo.compare GE, %i, %first : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.subtract %i, %one : tensor<i32>
    %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
    stablehlo.return %next, %z : tensor<i32>, tensor<8x64xf32>
  }
  %0 = stablehlo.dot_general %loop#1, %v0, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %1 = stablehlo.dot_general %0, %v1, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %2 = stablehlo.dot_general %1, %v2, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %3 = stablehlo.dot_general %2, %v3, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %sum = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<f32>
  return %sum : tensor<f32>
}
