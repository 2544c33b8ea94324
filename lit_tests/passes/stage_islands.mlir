// RUN: pcp-opt %s --pcp-stage='microbatches=2' --pcp-schedule='kind=gpipe' --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// Members of an elastic mesh are no devices of the stages: it lists none. What an outer
// algorithm keeps of a parameter lies on its stage, which sums it over its own peers.
// CHECK: "pcp.mesh"() {{.*}}"pp", 2 : i64>{{.*}}devices = [@m_0, @m_1]
// CHECK: "pcp.mesh"() {{.*}}"workers", -1 : i64>{{.*}}devices = [],
// CHECK-LABEL: module @m_0
// CHECK: func.func @outer_step(%{{[^:]*}}: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %{{[^:]*}}: tensor<4x4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}) -> (tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, tensor<4x4xf32> {pcp.name = "momentum.w", pcp.role = "outer"})
// CHECK: "pcp.all_reduce"(%{{.*}}) {{.*}}mesh = @all
// CHECK-NOT: pcp.all_reduce
// CHECK-LABEL: module @m_1
// CHECK: func.func @outer_step(%{{[^:]*}}: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, %{{[^:]*}}: tensor<4x4xf32> {pcp.name = "momentum.v", pcp.role = "outer"}) -> (tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, tensor<4x4xf32> {pcp.name = "momentum.v", pcp.role = "outer"})
// CHECK: "pcp.all_reduce"(%{{.*}}) {{.*}}mesh = @all
// CHECK-NOT: pcp.all_reduce
"pcp.mesh"() {axes = [#pcp.axis<"pp", 2>], devices = [], sym_name = "m"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "all"} : () -> ()
func.func @grad(%w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, %x: tensor<8x4xf32> {pcp.name = "x", pcp.role = "data"}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {pcp.stage = 0} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] {pcp.stage = 1} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}
func.func @outer_step(%w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, %v: tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, %m: tensor<4x4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}, %n: tensor<4x4xf32> {pcp.name = "momentum.v", pcp.role = "outer"}) -> (tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"}, tensor<4x4xf32> {pcp.name = "v", pcp.role = "param"}, tensor<4x4xf32> {pcp.name = "momentum.w", pcp.role = "outer"}, tensor<4x4xf32> {pcp.name = "momentum.v", pcp.role = "outer"}) {
  %a = "pcp.all_reduce"(%w) {axes = ["workers"], kind = "mean", mesh = @all} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = "pcp.all_reduce"(%v) {axes = ["workers"], kind = "mean", mesh = @all} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = stablehlo.add %a, %m : tensor<4x4xf32>
  %d = stablehlo.add %b, %n : tensor<4x4xf32>
  return %c, %d, %c, %d : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
