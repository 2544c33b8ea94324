// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-name-exchanges)' | filecheck %s
// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-name-exchanges,pcp-partition,pcp-bucket-collectives)' | filecheck %s --check-prefix=PARTS

// Each sum over islands has a name, of the function and its number in it. The sum along
// tp has none: it is the island's own.
// CHECK-LABEL: func.func @outer_step
// CHECK: "pcp.all_reduce"{{.*}}axes = ["workers"]{{.*}}part_of = {layout = {{\[\[}}], ["tp"]], name = "outer_step.0", shape = [4, 8]}
// CHECK: "pcp.all_reduce"{{.*}}part_of = {layout = [], name = "outer_step.1", shape = []}
// CHECK: "pcp.all_reduce"{{.*}}part_of = {layout = {{\[\[}}], ["tp"]], name = "outer_step.2", shape = [4, 8]}

// A rank sums its part, and the name goes along; no bucket takes it.
// PARTS-LABEL: module @m_1
// PARTS: "pcp.all_reduce"{{.*}}part_of = {layout = {{\[\[}}], ["tp"]], name = "outer_step.0", shape = [4, 8]}{{.*}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
// PARTS: "pcp.all_reduce"{{.*}}name = "outer_step.1"
// PARTS: "pcp.all_reduce"{{.*}}name = "outer_step.2"
"pcp.mesh"() {axes = [#pcp.axis<"tp", 2>], devices = [], sym_name = "m"} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "workers_mesh"} : () -> ()
func.func @outer_step(%a: tensor<4x8xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>}, %t: tensor<f32>) -> (tensor<4x8xf32>, tensor<f32>, tensor<4x8xf32>) {
  %0 = "pcp.all_reduce"(%a) {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "pcp.all_reduce"(%t) {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<f32>) -> tensor<f32>
  %2 = stablehlo.add %a, %a : tensor<4x8xf32>
  %3 = "pcp.all_reduce"(%2) {axes = ["workers"], kind = "sum", mesh = @workers_mesh} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1, %3 : tensor<4x8xf32>, tensor<f32>, tensor<4x8xf32>
}
