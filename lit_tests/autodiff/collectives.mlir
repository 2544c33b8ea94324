// RUN: pcp-opt %s --pcp-vjp | filecheck %s

// The transpose of a distributed program is distributed: the parts of the gathered
// tensor go back to their members, added.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: "pcp.all_gather"(%arg0)
// CHECK: %[[G:.+]] = "pcp.reduce_scatter"(%arg1)
// CHECK-SAME: kind = "sum"
// CHECK: return %{{.+}}, %[[G]]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<2x6xf32>) -> tensor<4x6xf32> {
  %y = "pcp.all_gather"(%x) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<2x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}
