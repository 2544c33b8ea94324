// RUN: pcp-opt %s --pcp-lower-to-runtime | filecheck %s
// RUN: pcp-opt %s --pcp-lower-to-runtime --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC

// CHECK: pcp.collectives = {
// CHECK-SAME: all_reduce_0_f32_4 = {axes = ["workers"], dtype = "f32", kind = "all_reduce", mesh = "m", reduction = "sum", shape = [4], wire = "f32"}
// CHECK-SAME: all_reduce_1_f32_4 = {axes = ["workers"], dtype = "f32", kind = "all_reduce", mesh = "m", reduction = "sum", shape = [4], wire = "bf16"}
// CHECK-SAME: all_reduce_2_f32_4 = {axes = ["workers"], codec = "e3m0", dtype = "f32", kind = "all_reduce", mesh = "m", reduction = "sum", shape = [4], wire = "f32"}
// CHECK-DAG: function_type = (tensor<4xf32>) -> tensor<4xf32>, iree.abi.model = "coarse-fences", nosideeffects, sym_name = "pcp_rt.all_reduce_0_f32_4", sym_visibility = "private"
// CHECK-DAG: sym_name = "pcp_rt.all_reduce_1_f32_4"
// CHECK: "pcp.mesh"
// CHECK: func.func @step(%[[X:.*]]: tensor<4xf32>)
// CHECK: %[[A:.*]] = "util.call"(%[[X]]) {callee = @pcp_rt.all_reduce_0_f32_4} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: %[[B:.*]] = "util.call"(%[[X]]) {callee = @pcp_rt.all_reduce_1_f32_4} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: stablehlo.add %[[A]], %[[B]]
// CHECK-NOT: pcp.all_reduce
// GENERIC: "util.func"() ({
// GENERIC: "func.func"
"pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "m"} : () -> ()
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.all_reduce"(%x) {axes = ["workers"], kind = "sum", mesh = @m, wire = bf16} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  %3 = "pcp.all_reduce"(%2) {axes = ["workers"], codec = "e3m0", kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}
