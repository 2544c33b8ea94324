// RUN: pcp-opt %s --pcp-grad --split-input-file | filecheck %s
// RUN: pcp-opt %s --pcp-grad=func= --split-input-file | filecheck %s

// Each declared gradient becomes a function, by the arguments it names, in their order;
// nothing else is differentiated. Without the value, gradients are all it returns.
// CHECK-NOT: pcp.grad
// CHECK-LABEL: func.func @loss(
// CHECK-DAG: func.func @swapped(%{{.+}}: tensor<f32> {{.*}}, %{{.+}}: tensor<2xf32>) -> (tensor<f32> {pcp.name = "loss"}, tensor<2xf32>, tensor<f32>)
// CHECK-DAG: func.func @slope(%{{.+}}: tensor<f32> {{.*}}, %{{.+}}: tensor<2xf32>) -> tensor<f32>
// CHECK-NOT: func.func
// CHECK-NOT: pcp.grad
"pcp.grad"() {fn = @loss, sym_name = "swapped", wrt = [1, 0]} : () -> ()
"pcp.grad"() {fn = @loss, has_value = false, sym_name = "slope", wrt = []} : () -> ()
func.func @loss(%w: tensor<f32> {pcp.role = "param"}, %x: tensor<2xf32>) -> (tensor<f32> {pcp.name = "loss"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> tensor<2xf32>
  %y = stablehlo.multiply %b, %x : tensor<2xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}
