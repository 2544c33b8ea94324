// RUN: pcp-opt %s --pcp-grad --pcp-expand-training=func= | filecheck %s
// RUN: not pcp-opt %s --pcp-expand-training=func= 2>&1 | filecheck %s --check-prefix=EARLY

// EARLY: pcp.step: @grad is declared by a pcp.grad; run pcp-grad before

// The gradient declares which arguments are the parameters: here the second. What it
// gives is averaged over the plan's mesh.
// CHECK-NOT: pcp.step
// CHECK: func.func @alone(%[[X:.+]]: tensor<2xf32> {pcp.name = "x"}, %[[W:.+]]: tensor<2xf32>) -> (tensor<f32>, tensor<2xf32> {pcp.name = "w"})
// CHECK: %[[G:.+]]:2 = call @grad(%[[X]], %[[W]])
// CHECK-NOT: pcp.all_reduce
// CHECK: %[[N:.+]] = call @apply(%[[W]], %[[G]]#1)
// CHECK: return %[[G]]#0, %[[N]]
// CHECK: func.func @together(
// CHECK: %[[G:.+]]:2 = call @grad
// CHECK: "pcp.all_reduce"{{.*}} {axes = ["dp"], kind = "sum", mesh = @m}
// CHECK: %[[N:.+]] = call @apply(%{{.+}}, %[[MEAN:.+]])
// CHECK-NOT: pcp.step
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {}, sym_name = "alone"} : () -> ()
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {mesh = @m}, sym_name = "together"} : () -> ()
"pcp.grad"() {fn = @loss, sym_name = "grad", wrt = [1]} : () -> ()
func.func @loss(%x: tensor<2xf32> {pcp.name = "x"}, %w: tensor<2xf32>) -> tensor<f32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @apply(%w: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32> {pcp.name = "w"}) {
  %0 = stablehlo.subtract %w, %g : tensor<2xf32>
  return %0 : tensor<2xf32>
}
