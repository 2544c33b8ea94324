// RUN: pcp-opt %s --pcp-stage='microbatches=2' | filecheck %s
// RUN: pcp-opt %s --pcp-stage='microbatches=2' --pcp-schedule='kind=1f1b' --pcp-lower-schedule --pcp-verify-plan | filecheck %s --check-prefix=DEVICES

// Two devices for each stage, with half of the batch each: a schedule for each place
// along dp, over parts of the arguments. The whole is made of both.
// CHECK-LABEL: func.func @grad
// CHECK: builtin.unrealized_conversion_cast %{{.*}} : tensor<8x4xf32> to !pcp.on<tensor<4x4xf32>, @m_0>
// CHECK: "pcp.schedule"
// CHECK: stablehlo.slice %{{.*}} [2:4, 0:4] : (tensor<4x4xf32>) -> tensor<2x4xf32>
// CHECK: device = @m_2, dir = "opt"
// CHECK: builtin.unrealized_conversion_cast %{{.*}} : tensor<8x4xf32> to !pcp.on<tensor<4x4xf32>, @m_1>
// CHECK: "pcp.schedule"
// CHECK: device = @m_3, dir = "opt"
// CHECK: builtin.unrealized_conversion_cast %{{.*}}, %{{.*}} : !pcp.on<tensor<4x4xf32>, @m_0>, !pcp.on<tensor<4x4xf32>, @m_1> to tensor<4x4xf32>

// Behind the last microbatch the sum is made over dp; then it goes to its parameter. A
// barrier keeps the work in front of the message.
// DEVICES-LABEL: module @m_0
// DEVICES: func.func @grad(%{{.*}}: tensor<4x4xf32> {pcp.name = "x"{{.*}}, %{{.*}}: tensor<4x4xf32> {pcp.name = "w"
// DEVICES: "pcp.send"(%{{.*}}) {channel = 1 : i64, to = @m_2} : (tensor<2x4xf32>)
// DEVICES-NOT: pcp.all_reduce
// DEVICES: %[[G:.*]] = "pcp.recv"() {channel = 3 : i64, source = @m_2}
// DEVICES-NEXT: return %[[G]] : tensor<4x4xf32>
// The update is where the parameter is; the count of steps is everywhere.
// DEVICES: func.func @apply(%{{.*}}: tensor<4x4xf32> {{.*}}, %{{.*}}: tensor<4x4xf32> {{.*}}, %{{.*}}: tensor<i32>
// DEVICES-LABEL: module @m_1
// DEVICES: "pcp.send"(%{{.*}}) {channel = 4 : i64, to = @m_3}
// DEVICES-LABEL: module @m_2
// DEVICES: "pcp.recv"() {channel = 1 : i64, source = @m_0}
// DEVICES: "pcp.recv"() {channel = 2 : i64, source = @m_0}
// DEVICES: %[[A:.*]] = stablehlo.add %{{.*}}, %{{.*}} : tensor<4x4xf32>
// DEVICES-NEXT: %[[L:.*]] = "pcp.all_reduce"(%{{.*}}) {axes = ["dp"], {{.*}} : (tensor<f32>)
// DEVICES-NEXT: %[[S:.*]] = "pcp.all_reduce"(%[[A]]) {axes = ["dp"], {{.*}} : (tensor<4x4xf32>)
// DEVICES-NEXT: %[[H:.*]]:2 = stablehlo.optimization_barrier %[[S]], %[[A]]
// DEVICES-NEXT: "pcp.send"(%[[H]]#0) {channel = 3 : i64, to = @m_0}
// DEVICES-NEXT: return %[[L]] : tensor<f32>
// DEVICES: func.func @apply(%{{[^:]*}}: tensor<i32> {pcp.name = "step", pcp.role = "state"}) -> (tensor<i32>
// DEVICES-LABEL: module @m_3
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>, #pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @grad(%x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}, %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}) -> (tensor<f32>, tensor<4x4xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = stablehlo.multiply %0, %0 {pcp.stage = 1} : tensor<8x4xf32>
  %2 = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.add %0, %0 : tensor<8x4xf32>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %2, %4 : tensor<f32>, tensor<4x4xf32>
}
func.func @apply(%w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %g: tensor<4x4xf32> {pcp.name = "w", pcp.role = "grad"}, %n: tensor<i32> {pcp.name = "step", pcp.role = "state"}) -> (tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, tensor<i32> {pcp.name = "step", pcp.role = "state"}) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0 = stablehlo.subtract %w, %g : tensor<4x4xf32>
  %1 = stablehlo.add %n, %one : tensor<i32>
  return %0, %1 : tensor<4x4xf32>, tensor<i32>
}
